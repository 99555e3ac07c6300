//! What a Rust source has: which modules a file declares, which names it defines and which paths it uses.

use std::collections::BTreeSet;
use std::mem;

use anyhow::Result;
use proc_macro2::Spacing;
use proc_macro2::TokenTree::{self, Group, Ident, Punct};

use super::tokens::{code, is};

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
    /// The name that it has in this file; none for `*`.
    pub(crate) name: Option<String>,
}

impl Source {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut source = Self::default();
        source.read(&code(text)?.into_iter().collect::<Vec<_>>());
        Ok(source)
    }

    fn read(&mut self, tokens: &[TokenTree]) {
        let mut at = 0;
        while at < tokens.len() {
            let (before, rest) = tokens.split_at(at);
            at += self.item(before, rest);
        }
    }

    /// Reads what begins at the first of `tokens` and returns its number of tokens.
    fn item(&mut self, before: &[TokenTree], tokens: &[TokenTree]) -> usize {
        const DEFINES: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
        let word = match tokens {
            [Group(group), ..] => {
                self.read(&group.stream().into_iter().collect::<Vec<_>>());
                return 1;
            }
            [quote, Ident(_), ..] if is(quote, '\'') => return 2, // a lifetime
            [Ident(word), ..] => word.to_string(),
            // In the middle of a path that begins with a type.
            _ if separator(tokens) && matches!(tokens.get(2), Some(Ident(_))) => return 3,
            _ => return 1,
        };
        match (word.as_str(), &tokens[1..]) {
            ("use", tree @ [next, ..]) if !is(next, '<') => {
                let end = tree.iter().position(|token| is(token, ';')).unwrap_or(tree.len());
                imports(&tree[..end], &[], &mut self.imports);
                1 + end
            }
            ("mod", [Ident(name), end, ..]) if is(end, ';') => {
                self.modules.push((name.to_string(), path_attribute(before)));
                2
            }
            (word, next) if DEFINES.contains(&word) => {
                let begins = matches!(next, [Ident(_), ..]) || next.first().is_some_and(|next| is(next, '!'));
                let mut names = next.iter().take(3).filter_map(|token| match token {
                    Ident(name) if name != "mut" && name != "fn" => Some(name.to_string()),
                    _ => None,
                });
                self.defined.extend(names.next().filter(|_| begins));
                1
            }
            _ => {
                let mut path = vec![word];
                let mut end = 1;
                while let (true, Some(Ident(next))) = (separator(&tokens[end..]), tokens.get(end + 2)) {
                    path.push(next.to_string());
                    end += 3;
                }
                self.paths.extend(Some(path).filter(|path| path.len() > 1));
                end
            }
        }
    }
}

/// The file in `#[path = "file"]`, if that attribute stands right before.
fn path_attribute(before: &[TokenTree]) -> Option<String> {
    let Group(attribute) = before.last()? else { return None };
    Some(attribute.stream().to_string().strip_prefix("path =")?.trim().trim_matches('"').to_owned())
}

/// Whether `::` comes next.
fn separator(tokens: &[TokenTree]) -> bool {
    let [Punct(first), second, ..] = tokens else { return false };
    first.as_char() == ':' && first.spacing() == Spacing::Joint && is(second, ':')
}

/// Reads a tree such as `a::{b, c::{self, d as e}, f::*}`.
fn imports(tree: &[TokenTree], prefix: &[String], found: &mut Vec<Import>) {
    for branch in tree.split(|token| is(token, ',')) {
        let mut path = prefix.to_vec();
        let mut alias = None;
        let mut tokens = branch.iter();
        while let Some(token) = tokens.next() {
            match token {
                Group(group) => {
                    imports(&group.stream().into_iter().collect::<Vec<_>>(), &path, found);
                    path.clear();
                }
                Ident(word) if word == "as" => alias = tokens.next().map(ToString::to_string),
                Ident(word) => path.push(word.to_string()),
                star if is(star, '*') => found.push(Import { path: mem::take(&mut path), name: None }),
                _ => {}
            }
        }
        if path.len() > prefix.len() {
            if path.len() > 1 {
                path.pop_if(|last| last == "self");
            }
            found.push(Import { name: alias.or_else(|| path.last().cloned()), path });
        }
    }
}

#[test]
fn a_source_is_read_without_comments_texts_and_tests() {
    let source = Source::parse(
        r##"
        //! use crate::comment;
        //! [`crate::documentation`]
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
        struct Last(&'static str, <A as B>::Of::<u8>, [u8; crate::LENGTH]);
        "##,
    )
    .unwrap();
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
    assert_eq!(paths, ["crate::error::Error", "parent::call", "crate::LENGTH"]);
}
