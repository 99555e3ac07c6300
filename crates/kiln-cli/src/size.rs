//! Sizes as people write them: a number with its unit.

use bytesize::ByteSize;

/// Larger sizes are slips of the keyboard.
const MOST: u64 = 1 << 60;

/// The bytes of `500MB` or `1.5GiB`, at least one.
///
/// # Errors
/// What is wrong with the text, and what would be accepted. A number without a unit is refused: 300 may be meant as 300 MiB.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if !text.is_empty() && text.parse::<f64>().is_ok() {
        return Err(format!("{text} has no unit, expected e.g. {text}MiB"));
    }
    match text.parse::<ByteSize>() {
        Ok(ByteSize(bytes)) if (1..MOST).contains(&bytes) => Ok(bytes),
        Ok(_) => Err(format!("'{text}' is no size that memory can have, expected e.g. 300MiB or 24GiB")),
        Err(_) => Err(format!("'{text}' is not a size, expected e.g. 300MiB or 24GiB")),
    }
}

/// `bytes` as it is printed: in GiB, MiB or KiB, to be read back by [`bytes`](bytes()) with three digits.
pub fn shown(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// `bytes` without loss, in the largest unit that has no fraction.
pub fn exact(bytes: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes}B"), |(unit, name)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::{bytes, exact};

    #[test]
    fn a_size_needs_a_unit() {
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!((bytes("500 MB"), bytes("1B")), (Ok(500_000_000), Ok(1)));
        assert_eq!(bytes("300").unwrap_err(), "300 has no unit, expected e.g. 300MiB");
        assert_eq!(bytes("1.5").unwrap_err(), "1.5 has no unit, expected e.g. 1.5MiB");
        for text in ["much", "-1", "", "0B", "9999999EiB", "MiB", "3 apples"] {
            assert!(bytes(text).unwrap_err().contains("MiB"), "{text}");
        }
    }

    #[test]
    fn an_exact_size_is_read_back() {
        for (size, text) in [(3 << 29, "1536MiB"), (24 << 30, "24GiB"), (1000, "1000B"), (2048, "2KiB")] {
            assert_eq!((exact(size), bytes(text)), (text.to_owned(), Ok(size)));
        }
    }
}
