//! `kiln completions`: scripts that shells accept.

use std::process::{Command, Stdio};

use super::support::{output, stderr};

#[test]
fn bash_completes_commands_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let printed = output(folder.path(), &["completions", "bash"]);
    assert!(printed.status.success(), "{}", stderr(&printed));
    let script = folder.path().join("kiln.bash");
    std::fs::write(&script, &printed.stdout).unwrap();
    // What bash does when a user types `kiln train c` or `kiln train gpt --cont` and the tab key.
    let completed = |words: &str| {
        let ask = format!(
            ". '{}'; COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); \
             _kiln kiln \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[*]}}\"",
            script.display()
        );
        let bash = Command::new("bash").args(["-c", &ask]).stderr(Stdio::inherit()).output().unwrap();
        String::from_utf8(bash.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(completed("kiln train cl"), "classify");
    assert_eq!(completed("kiln train gpt --cont"), "--context");
    assert!(completed("kiln ''").split(' ').any(|command| command == "compress"));
}

#[test]
fn an_unknown_shell_is_refused_with_those_that_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let refused = output(folder.path(), &["completions", "cmd"]);
    assert_eq!(refused.status.code(), Some(2));
    let text = stderr(&refused);
    assert!(["bash", "zsh", "fish"].iter().all(|shell| text.contains(shell)), "{text}");
}
