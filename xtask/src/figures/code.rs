//! A hash of sources that changes when the code does: without comments, layout and tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use xxhash_rust::xxh3::Xxh3;

use crate::tokens::{Token, tokens, without_tests};

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
            add(&file, &text, &mut hash);
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

fn add(file: &Path, bytes: &[u8], hash: &mut Xxh3) {
    let mut part = |text: &str| {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    };
    let end = file.extension().unwrap_or_default();
    let Ok(text) = std::str::from_utf8(bytes) else { return hash.update(bytes) };
    if end != "rs" {
        let code = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        return code.for_each(part);
    }
    for token in without_tests(tokens(text)) {
        match token {
            Token::Word(text) | Token::Text(text) => part(&text),
            Token::Separator => part("::"),
            Token::Sign(sign) => part(sign.encode_utf8(&mut [0; 4])),
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
            ("src/lib.rs", "//! New\nfn f() {\n    g('a', \"b\", /* why */ 1)\n}\n#[cfg(test)]\nmod t { fn g() {} }\n"),
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
            ("src/lib.rs", "fn f() { g('a', r\"b\", 1) } fn h() {}\n"),
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
