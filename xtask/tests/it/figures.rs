//! `xtask figures`: the figures of the pages are those of the present code.

use std::fs;

use super::support::{output, stderr};

#[test]
fn figures_of_the_pages_are_those_of_the_present_code() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(folder.path(), &["figures"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// A project with one page and one source.
fn project(page: &str, source: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("docs")).unwrap();
    fs::write(folder.path().join("README.md"), "# Title\n").unwrap();
    fs::write(folder.path().join("docs/page.md"), page).unwrap();
    fs::write(folder.path().join("code.rs"), source).unwrap();
    folder
}

const TABLE: &str = "\n| A | B |\n|---|---|\n| x | 1.5 |\n| y | 2.5 |\n";

#[test]
fn a_table_is_out_of_date_when_its_code_changes_and_not_when_a_comment_does() {
    let page = format!("# Page\n\n<!-- figures: cargo bench | of: code.rs | code: none -->{TABLE}");
    let folder = project(&page, "fn f() -> u32 { 1 }\n");
    let run = |arguments: &[&str]| output(folder.path(), &[&["figures", "--root", "."], arguments].concat());
    let said = |arguments: &[&str]| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        stderr(&output)
    };
    let old = said(&[]);
    assert!(old.contains("docs/page.md:3: `cargo bench` has not run since the code changed in code.rs"), "{old}");

    // Only the named marks are accepted.
    assert!(run(&["--accept", "README.md"]).status.success() && run(&["--accept", "docs/page.md:9"]).status.success());
    assert_eq!(said(&[]), old);
    assert!(run(&["--accept", "docs/page.md:3"]).status.success());
    assert!(run(&[]).status.success(), "{}", stderr(&run(&[])));
    fs::write(folder.path().join("code.rs"), "/// One.\nfn f() -> u32 {\n    1\n}\n").unwrap();
    assert!(run(&[]).status.success(), "{}", stderr(&run(&[])));
    fs::write(folder.path().join("code.rs"), "fn f() -> u32 { 2 }\n").unwrap();
    assert!(said(&[]).contains("docs/page.md:3"));
    assert!(run(&["README.md"]).status.success());
    assert_eq!(run(&["absent.md"]).status.code(), Some(2));
    // Nothing but the mark has changed.
    let accepted = fs::read_to_string(folder.path().join("docs/page.md")).unwrap();
    assert_eq!(accepted.lines().count(), page.lines().count());
    assert!(
        accepted.ends_with(TABLE) && accepted.starts_with("# Page\n\n<!-- figures: cargo bench | of: code.rs | code: ")
    );
}

#[test]
fn a_table_that_no_mark_explains_is_named_and_so_is_one_that_contradicts_its_results() {
    for (page, part) in [
        (TABLE.to_owned(), "docs/page.md:2: no mark says where the figures of '| A | B |' come from"),
        (format!("<!-- figures: cargo bench | in: code.rs -->{TABLE}"), "'2.5' of the table is not in code.rs"),
        (format!("<!-- figures: cargo bench | in: absent -->{TABLE}"), "cannot read 'absent'"),
        (format!("<!-- figures: cargo bench | of: absent | code: 1 -->{TABLE}"), "cannot read 'absent'"),
        (format!("<!-- figures: cargo bench | at: 1a2b -->{TABLE}"), "those of revision 1a2b"),
        (format!("<!-- figures: cargo bench -->{TABLE}"), "is no mark"),
        ("<!-- output -->\n```text\n$ kiln train resnet --memory 300\nall is well\n```\n".to_owned(), "'all is well'"),
        ("<!-- output: kiln train resnet --memory 300 | has: no unit, GiB -->\n".to_owned(), "no longer prints 'GiB'"),
    ] {
        let folder = project(&page, "// 1.5\n");
        let output = output(folder.path(), &["figures", "--root", "."]);
        assert_eq!(output.status.code(), Some(1), "{page}\n{}", stderr(&output));
        assert!(stderr(&output).contains(part), "{page}\n{}", stderr(&output));
    }
}
