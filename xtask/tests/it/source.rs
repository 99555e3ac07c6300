//! Reads a Rust source: the modules that a file declares, the names that it defines and the paths that it uses.

use std::collections::BTreeSet;

use super::tokens::Token::{self, Separator, Sign, Text, Word};
use super::tokens::{closing, tokens, without_tests};

/// The part of a source file that is compiled outside of tests.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// `mod name;`, with the file that a `#[path = ".."]` attribute names.
    pub(crate) modules: Vec<(String, Option<String>)>,
    /// Names of functions, types, traits, constants and macros.
    pub(crate) defined: BTreeSet<String>,
    pub(crate) imports: Vec<Import>,
    /// Paths of at least two segments outside of `use` declarations.
    pub(crate) paths: Vec<Vec<String>>,
}

/// One leaf of a `use` declaration.
#[derive(Debug, PartialEq)]
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// Its name in this file. `None` for `*`.
    pub(crate) name: Option<String>,
}

impl Source {
    pub(crate) fn parse(text: &str) -> Self {
        let tokens = without_tests(tokens(text));
        let mut source = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            at = source.item(&tokens, at);
        }
        source
    }

    /// Reads the item at a token and returns the position after it.
    fn item(&mut self, tokens: &[Token], at: usize) -> usize {
        const DEFINES: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
        let Word(word) = &tokens[at] else { return at + 1 };
        if at > 0 && tokens[at - 1] == Separator {
            return at + 1; // in the middle of a path that begins with a type
        }
        match (word.as_str(), tokens.get(at + 1)) {
            ("use", _) => {
                let end = position(tokens, at, &Sign(';'));
                imports(&tokens[at + 1..end], &[], &mut self.imports);
                end + 1
            }
            ("mod", Some(Word(name))) if tokens.get(at + 2) == Some(&Sign(';')) => {
                self.modules.push((name.clone(), path_attribute(&tokens[..at])));
                at + 3
            }
            (word, Some(next)) if DEFINES.contains(&word) => {
                let words = tokens[at + 1..].iter().take(3).filter_map(|token| match token {
                    Word(name) if name != "mut" && name != "fn" => Some(name),
                    _ => None,
                });
                if let (Word(_) | Sign('!'), Some(name)) = (next, words.into_iter().next()) {
                    self.defined.insert(name.clone());
                }
                at + 1
            }
            (_, Some(Separator)) => {
                let mut path = vec![word.clone()];
                let mut end = at + 1;
                while let (Some(Separator), Some(Word(next))) = (tokens.get(end), tokens.get(end + 1)) {
                    path.push(next.clone());
                    end += 2;
                }
                self.paths.push(path);
                end
            }
            _ => at + 1,
        }
    }
}

fn position(tokens: &[Token], from: usize, wanted: &Token) -> usize {
    tokens[from..].iter().position(|token| token == wanted).map_or(tokens.len(), |found| from + found)
}

/// The file in a `#[path = "file"]` attribute, if it directly precedes the item.
fn path_attribute(before: &[Token]) -> Option<String> {
    match before {
        [.., Sign('['), Word(path), Sign('='), Text(file), Sign(']')] if path == "path" => Some(file.clone()),
        _ => None,
    }
}

/// Reads a tree such as `a::{b, c::{self, d as e}, f::*}`.
fn imports(tree: &[Token], prefix: &[String], found: &mut Vec<Import>) {
    let mut branch = prefix.to_vec();
    let mut alias = None;
    let mut at = 0;
    let mut finish = |branch: &mut Vec<String>, alias: &mut Option<String>| {
        if branch.len() > prefix.len() {
            if branch.last().is_some_and(|last| last == "self") && branch.len() > 1 {
                branch.pop();
            }
            let name = alias.take().or_else(|| branch.last().cloned());
            found.push(Import { path: branch.clone(), name });
        }
        *branch = prefix.to_vec();
    };
    let mut nested = vec![];
    while at < tree.len() {
        match &tree[at] {
            Sign(',') => finish(&mut branch, &mut alias),
            Sign('*') => {
                nested.push((branch.clone(), None));
                branch = prefix.to_vec();
            }
            Sign('{') => {
                let end = closing(tree, at);
                nested.push((branch.clone(), Some(&tree[at + 1..end])));
                branch = prefix.to_vec();
                at = end;
            }
            Word(word) if word == "as" => {
                if let Some(Word(name)) = tree.get(at + 1) {
                    alias = Some(name.clone());
                }
                at += 1;
            }
            Word(word) => branch.push(word.clone()),
            _ => {}
        }
        at += 1;
    }
    finish(&mut branch, &mut alias);
    for (path, tree) in nested {
        match tree {
            Some(tree) => imports(tree, &path, found),
            None => found.push(Import { path, name: None }),
        }
    }
}

#[test]
fn a_source_is_read_without_comments_texts_and_tests() {
    let source = Source::parse(
        r##"
        //! use crate::comment;
        mod child;
        #[path = "../elsewhere.rs"]
        mod moved;
        pub use child::{A, inner::{self, B as C}, other::*};
        use super::parent;
        const TEXT: &str = "use crate::text; \" crate::text::more"; const RAW: &str = r#"crate::"raw"#;
        pub(crate) fn run<'a>(c: char) -> Vec<crate::error::Error> { matches!(c, '"' | '\''); parent::call::<u8>(); }
        #[cfg(test)]
        #[allow(dead_code)]
        mod tests { use crate::hidden; fn f() {} }
        macro_rules! twice { () => {} }
        struct Last;
        "##,
    );
    assert_eq!(source.modules, [("child".into(), None), ("moved".into(), Some("../elsewhere.rs".into()))]);
    let defined: Vec<&str> = source.defined.iter().map(String::as_str).collect();
    assert_eq!(defined, ["Last", "RAW", "TEXT", "run", "twice"]);
    let imports: Vec<(String, Option<&str>)> =
        source.imports.iter().map(|import| (import.path.join("::"), import.name.as_deref())).collect();
    let expected = [
        ("child::A".to_owned(), Some("A")),
        ("child::inner".to_owned(), Some("inner")),
        ("child::inner::B".to_owned(), Some("C")),
        ("child::other".to_owned(), None),
        ("super::parent".to_owned(), Some("parent")),
    ];
    assert_eq!(imports, expected);
    let paths: Vec<String> = source.paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["crate::error::Error", "parent::call"]);
}
