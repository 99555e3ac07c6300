//! Sizes as people write them: `512`, `64K`, `1.5G`, in bytes and powers of 1,024.

/// Reads a size in bytes. The suffixes K, M, G and T (either case, `iB` or `B` may follow) are powers of 1,024.
///
/// Gives nothing for a text that is no size: a negative number, an unknown suffix, or more than `u64::MAX` bytes.
#[must_use]
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.trim().to_ascii_lowercase();
    let shift = match suffix.strip_suffix("ib").or(suffix.strip_suffix('b')).unwrap_or(&suffix) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let value = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    (value.is_finite() && value < u64::MAX as f64).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64K", 64 << 10),
            ("6g", 6 << 30),
            ("1.5G", 3 << 29),
            ("80 GiB", 80 << 30),
            ("2MB", 2 << 20),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn refusals() {
        for text in ["", "G", "-1", "1X", "1e9", "1.2.3", "20000000T", "ten"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
