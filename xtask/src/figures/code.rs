//! A hash of sources that changes when the code does: without comments, layout and tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use xxhash_rust::xxh3::Xxh3;

use crate::tokens::code;

/// The hash of files and folders below `root`.
pub(crate) fn hash(root: &Path, paths: &[String]) -> Result<String> {
    let mut hash = Xxh3::new();
    for path in paths {
        let mut files = vec![];
        sources(&root.join(path), &mut files).with_context(|| format!("cannot read '{path}'"))?;
        ensure!(!files.is_empty(), "'{path}' has no sources");
        files.sort();
        for file in files {
            let text = fs::read(&file).with_context(|| format!("cannot read '{}'", file.display()))?;
            add(&file, &text, &mut hash).with_context(|| format!("cannot read '{}'", file.display()))?;
        }
    }
    Ok(format!("{:016x}", hash.digest()))
}

/// The files of a path, without files of tests.
fn sources(path: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.metadata()?.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let test = name == "tests" || name == "tests.rs" || name.ends_with("_tests.rs");
        let source =
            path.is_dir() || ["rs", "py", "toml"].iter().any(|end| path.extension().is_some_and(|e| e == *end));
        if source && !test && !name.starts_with('.') {
            sources(&path, found)?;
        }
    }
    Ok(())
}

fn add(file: &Path, bytes: &[u8], hash: &mut Xxh3) -> Result<()> {
    let mut part = |text: &str| {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    };
    match std::str::from_utf8(bytes) {
        Err(_) => hash.update(bytes),
        Ok(text) if file.extension().is_some_and(|end| end == "rs") => leaves(code(text)?, &mut part),
        Ok(text) => {
            text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).for_each(part);
        }
    }
    Ok(())
}

/// Gives the text of each token to `part`, so that layout does not count.
fn leaves(tokens: TokenStream, part: &mut impl FnMut(&str)) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                part(&format!("{:?}", group.delimiter()));
                leaves(group.stream(), part);
                part("end");
            }
            token => part(&token.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_layout_and_tests_do_not_count_and_code_does() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let written = |files: &[(&str, &str)]| {
            for (name, text) in files {
                fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
                fs::write(root.join(name), text).unwrap();
            }
            hash(root, &["src".into(), "a.py".into()]).unwrap()
        };
        let first = written(&[("src/lib.rs", "fn f() { g('a', \"b\", 1) }\n"), ("a.py", "x = 1\n")]);
        for same in [
            (
                "src/lib.rs",
                "//! New\n/// New\nfn f() {\n    g('a', \"b\", /* why */ 1)\n}\n#[cfg(test)]\nmod t { fn g() {} }\n",
            ),
            ("src/tests.rs", "fn g() {}\n"),
            ("src/tests/it.rs", "fn g() {}\n"),
            ("src/notes.txt", "1\n"),
            ("a.py", "# one\n\nx = 1\n"),
        ] {
            assert_eq!(written(&[same]), first, "{same:?}");
        }
        for (name, other) in [
            ("src/lib.rs", "fn f() { g('a', \"b\", 2) }\n"),
            ("src/lib.rs", "fn f() { g('b', \"b\", 1) }\n"),
            ("src/lib.rs", "fn f() { g('a', \"c\", 1) }\n"),
            ("src/lib.rs", "fn f() { g('a', \"b\", 1) } fn h() {}\n"),
            ("src/lib.rs", "#[cfg(test)]\nuse a::{b, c};\nfn f() { g('a', \"b\", 1); }\n"),
            ("a.py", "x = 2\n"),
        ] {
            assert_ne!(written(&[(name, other)]), first, "{other}");
            written(&[("src/lib.rs", "fn f() { g('a', \"b\", 1) }\n"), ("a.py", "x = 1\n")]);
        }
        assert!(
            hash(root, &["absent".into()]).unwrap_err().to_string().contains("'absent'")
                || !root.join("absent").exists()
        );
    }
}
