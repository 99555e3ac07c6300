//! Words as a shell reads them.

/// `word` in quotes where a shell would read it otherwise.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./:,=+@%".contains(char);
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
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
