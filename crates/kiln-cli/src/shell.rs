//! Quotes words for a shell.

/// Returns `word`, in quotes if a shell would change it otherwise. Control characters are escaped, as bash and zsh read them.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./:,=+@%".contains(char);
    if word.chars().any(char::is_control) {
        let escaped = word.chars().map(|char| match char {
            '\'' | '\\' => format!("\\{char}"),
            char if char.is_control() => format!("\\u{:04x}", u32::from(char)),
            char => char.to_string(),
        });
        return format!("$'{}'", escaped.collect::<String>());
    }
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_read_several() {
        for (word, shown) in [
            ("every:1", "every:1"),
            ("0..2 recompute, 2..4 plain", "'0..2 recompute, 2..4 plain'"),
            ("runs/it's", "'runs/it'\\''s'"),
            ("", "''"),
            ("it's\n\u{1b}\\", "$'it\\'s\\u000a\\u001b\\\\'"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
