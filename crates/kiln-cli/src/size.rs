//! Sizes in readable form: a number with its unit.

use bytesize::ByteSize;

/// Larger sizes are typing errors.
const MOST: u64 = 1 << 60;

/// Parses `500MB` or `1.5GiB` to bytes, at least one.
///
/// # Errors
/// Describes the error in the text, and the accepted format. A number without a unit is refused: 300 may mean 300 MiB.
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

/// A number of bytes in a fitting unit.
pub fn shown(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::bytes;

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
}
