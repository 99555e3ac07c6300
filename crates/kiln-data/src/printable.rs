//! Names from outside, as text that a terminal shows on one line.

use std::ffi::OsStr;

/// The name of a file or a class for a message: characters that a terminal obeys instead of showing them are written as Rust writes them,
/// as `\n` and `\u{1b}`, and bytes that are not UTF-8 as U+FFFD. A name can then neither add a line to the output nor control the terminal.
///
/// ```
/// assert_eq!(kiln_data::printable("photos/a\nb.png"), "photos/a\\nb.png");
/// ```
pub fn printable(name: &(impl AsRef<OsStr> + ?Sized)) -> String {
    let mut text = String::new();
    for character in name.as_ref().to_string_lossy().chars() {
        match is_hidden(character) {
            true => text.extend(character.escape_default()),
            false => text.push(character),
        }
    }
    text
}

/// Whether a terminal may obey `character`: control characters, ends of lines and paragraphs, and changes of the direction of text.
pub(crate) fn is_hidden(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        for (name, shown) in [
            ("a b/é日'\\.png", "a b/é日'\\.png"),
            ("a\r\n\tb", "a\\r\\n\\tb"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            ("a\u{202e}gnp.b\u{2028}", "a\\u{202e}gnp.b\\u{2028}"),
            ("", ""),
        ] {
            assert_eq!(printable(name), shown);
        }
    }

    #[test]
    #[cfg(unix)]
    fn bytes_that_are_not_utf8_are_replaced() {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(printable(std::ffi::OsStr::from_bytes(b"caf\xe9\n")), "caf\u{fffd}\\n");
    }
}
