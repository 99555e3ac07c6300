//! Rust sources of a folder, and their tokens without comments, documentation and tests.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, LexError, TokenStream, TokenTree};

/// The Rust files of a folder and of its folders; a file is its own. A folder that is not there has none.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    if path.file_name().is_some_and(|name| name == "target") {
        return vec![];
    }
    if let Ok(entries) = path.read_dir() {
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        return paths.iter().flat_map(|path| files(path)).collect();
    }
    path.extension().is_some_and(|extension| extension == "rs").then(|| path.to_owned()).into_iter().collect()
}

/// The code that is compiled outside of tests.
pub(crate) fn code(text: &str) -> Result<TokenStream> {
    Ok(without_tests(text.parse().map_err(|error: LexError| anyhow!("no Rust: {error}"))?))
}

/// Whether a token is this sign.
pub(crate) fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// Leaves out documentation, and each item that stands behind `#[cfg(test)]`.
fn without_tests(tokens: TokenStream) -> TokenStream {
    let braces = |token: &TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
    let mut kept = vec![];
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let TokenTree::Group(group) = token else {
            kept.push(token);
            continue;
        };
        // An attribute is `#[..]` or `#![..]`.
        let start = kept.iter().rposition(|token| !is(token, '!')).filter(|at| is(&kept[*at], '#'));
        let attribute = start.map(|_| group.stream().to_string().replace(' ', "")).unwrap_or_default();
        let test = attribute == "cfg(test)";
        if test || attribute.starts_with("doc=") {
            kept.truncate(start.unwrap_or_default());
        } else {
            kept.push(Group::new(group.delimiter(), without_tests(group.stream())).into());
        }
        // The item ends with its first `;`, or with its first braces.
        if test && tokens.find(|token| is(token, ';') || braces(token)).is_some_and(|end| braces(&end)) {
            tokens.next_if(|token| is(token, ';'));
        }
    }
    kept.into_iter().collect()
}
