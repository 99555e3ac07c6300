//! A light reader of Rust sources: their tokens, without comments and tests.

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Word(String),
    Text(String),
    /// `::`
    Separator,
    Sign(char),
}

use Token::{Separator, Sign, Text, Word};

/// The position of the brace that closes the one at `at`.
pub(crate) fn closing(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token {
            Sign('{') => depth += 1,
            Sign('}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    tokens.len()
}

/// Removes each item behind `#[cfg(test)]`.
pub(crate) fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let sign = Sign;
    let word = |text: &str| Word(text.into());
    let marker = [sign('#'), sign('['), word("cfg"), sign('('), word("test"), sign(')'), sign(']')];
    let mut kept = vec![];
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&marker) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += marker.len();
        // The item ends with its first `;`, or with the brace that closes its body.
        while at < tokens.len() && tokens[at] != Sign(';') && tokens[at] != Sign('{') {
            at += 1;
        }
        at = if tokens.get(at) == Some(&Sign('{')) { closing(&tokens, at) + 1 } else { at + 1 };
    }
    kept
}

/// Words, texts and signs, without comments. Characters and digits of numbers are distinguished from words.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let text: Vec<char> = text.chars().collect();
    let at = |index: usize| text.get(index).copied().unwrap_or('\0');
    let mut tokens = vec![];
    let mut i = 0;
    while i < text.len() {
        let c = text[i];
        if c == '/' && at(i + 1) == '/' {
            while i < text.len() && text[i] != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= text.len() {
                    break;
                }
            }
        } else if c == '"' {
            let from = i + 1;
            i = from;
            while i < text.len() && text[i] != '"' {
                i += if text[i] == '\\' { 2 } else { 1 };
            }
            tokens.push(Text(text[from..i.min(text.len())].iter().collect()));
            i += 1;
        } else if c.is_alphanumeric() || c == '_' {
            let from = i;
            while at(i).is_alphanumeric() || at(i) == '_' {
                i += 1;
            }
            let word: String = text[from..i].iter().collect();
            let hashes = text[i..].iter().take_while(|c| **c == '#').count();
            if ["r", "br", "cr"].contains(&word.as_str()) && at(i + hashes) == '"' {
                // A raw text ends with a quote and the same number of hashes as at its beginning.
                let from = i + hashes + 1;
                i = from;
                while i < text.len() && !(text[i] == '"' && (1..=hashes).all(|next| at(i + next) == '#')) {
                    i += 1;
                }
                tokens.push(Text(text[from..i.min(text.len())].iter().collect()));
                i += hashes + 1;
            } else if !(["b", "c"].contains(&word.as_str()) && at(i) == '"') {
                tokens.push(Word(word));
            }
        } else if c == '\'' {
            // A character, or a lifetime, whose name is then read as a word.
            let from = i + 1;
            if at(i + 1) == '\\' {
                i += 3;
                while i < text.len() && text[i] != '\'' {
                    i += 1;
                }
            } else if at(i + 2) == '\'' {
                i += 2;
            }
            if i > from {
                tokens.push(Text(text[from..i.min(text.len())].iter().collect()));
            }
            i += 1;
        } else if c == ':' && at(i + 1) == ':' {
            tokens.push(Separator);
            i += 2;
        } else {
            if !c.is_whitespace() {
                tokens.push(Sign(c));
            }
            i += 1;
        }
    }
    tokens
}
