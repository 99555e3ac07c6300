//! Splits PTX text into words, numbers and punctuation.

use crate::ptx::PtxError;

/// One token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Token<'a> {
    /// A name, a register, a label, a directive or an opcode with its modifiers.
    Word(&'a str),
    /// A number as written, without its sign.
    Number(&'a str),
    /// A quoted string, without the quotes.
    Text(&'a str),
    /// Any other single character.
    Mark(u8),
}

/// A token and the line it stands on, from 1.
pub(crate) type Located<'a> = (Token<'a>, u32);

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.' | b'%')
}

/// End of the run of bytes from `from` that satisfy `keep`.
fn end_of(bytes: &[u8], from: usize, keep: impl Fn(u8) -> bool) -> usize {
    bytes[from..].iter().position(|&b| !keep(b)).map_or(bytes.len(), |n| from + n)
}

/// All tokens of `text`, comments left out.
pub(crate) fn tokens(text: &str) -> Result<Vec<Located<'_>>, PtxError> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len() / 4);
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &bytes[at..];
        match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b if b.is_ascii_whitespace() || b == 0 => at += 1,
            b'/' if rest.starts_with(b"//") => at = end_of(bytes, at, |b| b != b'\n'),
            b'/' if rest.starts_with(b"/*") => {
                let end = text[at..].find("*/").map_or(bytes.len(), |n| at + n + 2);
                line += bytes[at..end].iter().filter(|&&b| b == b'\n').count() as u32;
                at = end;
            }
            b'"' => {
                let end = end_of(bytes, at + 1, |b| b != b'"' && b != b'\n');
                if bytes.get(end) != Some(&b'"') {
                    return Err(PtxError::Syntax { line, what: "a string without its closing quote".into() });
                }
                out.push((Token::Text(&text[at + 1..end]), line));
                at = end + 1;
            }
            b if b.is_ascii_digit() => {
                let end = end_of(bytes, at, |b| b.is_ascii_alphanumeric() || b == b'.');
                out.push((Token::Number(&text[at..end]), line));
                at = end;
            }
            b if in_word(b) => {
                let mut end = end_of(bytes, at, in_word);
                // `.shared::cta` is one word, `label:` is a word and a mark
                while bytes[end..].starts_with(b"::") {
                    end = end_of(bytes, end + 2, in_word);
                }
                out.push((Token::Word(&text[at..end]), line));
                at = end;
            }
            b if b.is_ascii() => {
                out.push((Token::Mark(b), line));
                at += 1;
            }
            _ => return Err(PtxError::Syntax { line, what: "a character outside of ASCII".into() }),
        }
    }
    Ok(out)
}

/// The bits and the form of a number; `0f` and `0d` numbers carry their floating-point bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Literal {
    Integer(u64),
    Float32(u32),
    Float64(u64),
}

/// Reads a number as PTX writes it.
pub(crate) fn literal(text: &str) -> Option<Literal> {
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f") {
        return u32::from_str_radix(hex, 16).ok().map(Literal::Float32);
    }
    if let Some(hex) = lower.strip_prefix("0d") {
        return u64::from_str_radix(hex, 16).ok().map(Literal::Float64);
    }
    if lower.contains('.') {
        return lower.parse::<f64>().ok().map(|v| Literal::Float64(v.to_bits()));
    }
    let digits = lower.trim_end_matches('u');
    let number = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if let Some(bits) = digits.strip_prefix("0b") {
        u64::from_str_radix(bits, 2)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(&digits[1..], 8)
    } else {
        digits.parse()
    };
    number.ok().map(Literal::Integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_marks() {
        let text = "@!%p1 ld.shared::cta.b32 %r1, [%rd2+-4]; // no\n$L__BB0_2: /* a\nb */ .x 0f3F800000";
        let found: Vec<_> = tokens(text).expect("well formed").into_iter().collect();
        use Token::{Mark, Number, Word};
        let expected = [
            (Mark(b'@'), 1),
            (Mark(b'!'), 1),
            (Word("%p1"), 1),
            (Word("ld.shared::cta.b32"), 1),
            (Word("%r1"), 1),
            (Mark(b','), 1),
            (Mark(b'['), 1),
            (Word("%rd2"), 1),
            (Mark(b'+'), 1),
            (Mark(b'-'), 1),
            (Number("4"), 1),
            (Mark(b']'), 1),
            (Mark(b';'), 1),
            (Word("$L__BB0_2"), 2),
            (Mark(b':'), 2),
            (Word(".x"), 3),
            (Number("0f3F800000"), 3),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn numbers() {
        assert_eq!(literal("0x5410U"), Some(Literal::Integer(0x5410)));
        assert_eq!(literal("017"), Some(Literal::Integer(15)));
        assert_eq!(literal("0b101"), Some(Literal::Integer(5)));
        assert_eq!(literal("0"), Some(Literal::Integer(0)));
        assert_eq!(literal("0f3F800000"), Some(Literal::Float32(1.0_f32.to_bits())));
        assert_eq!(literal("0d3FF0000000000000"), Some(Literal::Float64(1.0_f64.to_bits())));
        assert_eq!(literal("2.5"), Some(Literal::Float64(2.5_f64.to_bits())));
        assert_eq!(literal("12q"), None);
    }

    #[test]
    fn an_open_string_is_an_error() {
        assert!(matches!(tokens(".pragma \"nounroll;\n"), Err(PtxError::Syntax { line: 1, .. })));
    }
}
