//! Code that a page quotes from a program occurs in that program.
//!
//! A code block is a quotation if a line `<!-- from PATH -->` comes before it. Lines of the page that say `// ..` leave lines of the
//! program out.

use std::fs;

use super::links::{pages, root};

/// Path and code of each quotation of a page.
fn quotations(text: &str) -> Vec<(String, Vec<String>)> {
    let mut quotations = vec![];
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(path) = line.trim().strip_prefix("<!-- from ").and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let code = lines.by_ref().skip_while(|line| !line.starts_with("```")).skip(1);
        let code: Vec<String> = code.take_while(|line| !line.starts_with("```")).map(str::to_owned).collect();
        quotations.push((path.to_owned(), code));
    }
    quotations
}

/// The first line of `code` that is missing in `program` after the lines before it.
fn first_other<'a>(program: &str, code: &'a [String]) -> Option<&'a str> {
    let program: Vec<&str> = program.lines().map(str::trim).collect();
    let wanted: Vec<&str> = code.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    let original: Vec<&str> = program.into_iter().filter(|line| !line.is_empty()).collect();
    // The parts between `// ..`, each of which has no gap.
    let mut from = 0;
    for part in wanted.split(|line| *line == "// ..").filter(|part| !part.is_empty()) {
        let same = |at: usize| original[at..].iter().zip(part).take_while(|(a, b)| a == b).count();
        let longest =
            (from..original.len()).map(|at| (same(at), at)).max_by_key(|(length, at)| (*length, usize::MAX - at));
        match longest {
            Some((length, at)) if length == part.len() => from = at + length,
            Some((length, _)) => return code.iter().find(|line| line.trim() == part[length]).map(String::as_str),
            None => return code.iter().find(|line| line.trim() == part[0]).map(String::as_str),
        }
    }
    None
}

#[test]
fn quoted_code_stands_in_the_program() {
    let mut found = 0;
    for page in pages(root()) {
        for (path, code) in quotations(&fs::read_to_string(root().join(&page)).unwrap()) {
            let program = fs::read_to_string(root().join(&path)).unwrap_or_else(|e| panic!("{path}: {e}"));
            if let Some(line) = first_other(&program, &code) {
                panic!("{}: the code from {path} has another line there: '{line}'", page.display());
            }
            found += 1;
        }
    }
    assert!(found > 0, "no page quotes a program");
}

#[test]
fn another_line_is_found() {
    let page = "<!-- from a.rs -->\n```rust\nlet a = 1;\n// ..\nlet c = 3;\n```\ntext\n";
    let [(path, code)] = quotations(page).try_into().unwrap();
    assert_eq!(path, "a.rs");
    assert_eq!(first_other("    let a = 1;\n    let b = 2;\n\n    let c = 3;\n", &code), None);
    assert_eq!(first_other("let a = 1;\nlet c = 4;\n", &code), Some("let c = 3;"));
    assert_eq!(first_other("let c = 3;\nlet a = 1;\n", &code), Some("let c = 3;"));
}
