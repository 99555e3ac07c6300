//! Each source file begins with a line that describes its content.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::edges::all_packages;
use super::tokens::files;

/// Folders with files that may lack the line: none.
const WITHOUT: &[&str] = &[];

#[test]
fn files_open_with_a_line_that_says_what_is_in_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut without = BTreeSet::new();
    let mut wrong = String::new();
    for package in all_packages() {
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned();
        let folder = if folder.join("src").exists() { folder.join("src") } else { folder };
        let name = folder.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let files = files(&folder);
        assert!(!files.is_empty(), "no sources in {name}");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let line = text.lines().next().unwrap_or_default();
            if line.strip_prefix("//! ").is_none_or(|says| says.trim().is_empty()) {
                without.insert(name.clone());
                if !WITHOUT.contains(&name.as_str()) {
                    wrong += &format!("{} does not open with a `//!` line\n", file.display());
                }
            }
        }
    }
    for name in WITHOUT.iter().filter(|name| !without.contains(**name)) {
        wrong += &format!("{name}: all files open with a `//!` line, to be removed from the table\n");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
