//! Checks blocks of a page that show the output of commands, by running the commands again.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::mark::Mark;

/// The difference between a block and its commands' output, if any. The commands run in an empty folder. `...` in the block stands for
/// left-out lines.
pub(crate) fn difference(mark: &Mark, has: Option<&[String]>) -> Result<Option<String>> {
    if let Some(texts) = has {
        let printed = printed(&mark.command)?;
        let lacks = texts.iter().find(|text| !printed.contains(text.as_str()));
        return Ok(lacks.map(|text| format!("`{}` no longer prints '{text}'", mark.command)));
    }
    for (command, expected) in calls(&mark.below) {
        let printed = printed(&command)?;
        let printed: Vec<&str> = printed.trim().lines().map(str::trim_end).collect();
        if let Some(line) = first_other(&expected, &printed) {
            return Ok(Some(format!("`{command}` no longer prints '{line}'")));
        }
    }
    Ok(None)
}

/// Commands of a block (`$ command`, longer ones with `\` at the ends of their lines), and the lines below each.
fn calls(block: &[String]) -> Vec<(String, Vec<&str>)> {
    let mut calls: Vec<(String, Vec<&str>)> = vec![];
    let mut open = false;
    for line in block {
        let text = line.trim_end();
        let part = text.trim_end_matches('\\').trim();
        match calls.last_mut() {
            Some((command, _)) if open => *command = format!("{command} {part}"),
            _ if text.starts_with("$ ") => calls.push((part[2..].to_owned(), vec![])),
            Some((_, lines)) => lines.push(text),
            None => {}
        }
        open = text.ends_with('\\') && (open || text.starts_with("$ "));
    }
    for (_, lines) in &mut calls {
        while lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
    }
    calls
}

/// The output of a command, with stderr last. The program runs under the name in the command, because messages contain the name.
fn printed(command: &str) -> Result<String> {
    let Some(rest) = command.strip_prefix("cargo xtask ").or_else(|| command.strip_prefix("kiln ")) else {
        bail!("'{command}' cannot be run again, expected `cargo xtask ..` or `kiln ..`")
    };
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let mut program = Command::new(std::env::current_exe()?);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::arg0(&mut program, if command.starts_with("kiln ") { "kiln" } else { "xtask" });
    program.args(rest.split_whitespace()).current_dir(folder.path()).env_remove("KILN_LOG");
    let output = program.output().with_context(|| format!("cannot run `{command}`"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

/// The first line of a block that the output lacks at its place.
fn first_other<'a>(expected: &[&'a str], printed: &[&'a str]) -> Option<&'a str> {
    let mut parts = expected.split(|line| *line == "...");
    let first = parts.next().unwrap_or_default();
    if let Some(at) = (0..first.len()).find(|at| printed.get(*at) != Some(&first[*at])) {
        return Some(first[at]);
    }
    let mut rest = &printed[first.len()..];
    let mut open = false;
    for part in parts {
        let Some(at) = (0..=rest.len()).find(|at| rest[*at..].starts_with(part)) else { return part.first().copied() };
        rest = &rest[at + part.len()..];
        open = part.is_empty();
    }
    if open || rest.is_empty() || expected.is_empty() { None } else { Some(rest[0]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_with_their_lines() {
        let block: Vec<String> = ["$ kiln plan gpt \\", "    --memory 2GiB", "fits", "", "$ kiln runs", "a", "..."]
            .map(str::to_owned)
            .to_vec();
        let calls = calls(&block);
        assert_eq!(calls[0], ("kiln plan gpt --memory 2GiB".into(), vec!["fits"]));
        assert_eq!(calls[1], ("kiln runs".into(), vec!["a", "..."]));
    }

    #[test]
    fn another_line_is_found() {
        let printed = ["a", "b", "c", "d"];
        for (expected, other) in [
            (&["a", "b", "c", "d"][..], None),
            (&["a", "...", "d"], None),
            (&["...", "c", "..."], None),
            (&["a", "x", "c", "d"], Some("x")),
            (&["a", "...", "x"], Some("x")),
            (&["a", "b"], Some("c")),
            (&["a", "...", "b"], Some("c")),
            (&["a", "b", "c", "d", "e"], Some("e")),
        ] {
            assert_eq!(first_other(expected, &printed), other, "{expected:?}");
        }
    }
}
