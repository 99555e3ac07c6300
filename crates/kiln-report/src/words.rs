//! Numbers with their nouns.

use std::fmt::Display;

/// `1 image`, `2 images`, `0 classes`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let text = format!("{count} ");
    text + &numbered(count, noun)
}

/// `noun` in the form that follows `count`.
pub fn numbered<N: PartialEq + From<u8>>(count: N, noun: &str) -> String {
    match count == N::from(1) {
        true => noun.to_owned(),
        false if noun.ends_with('s') || noun.ends_with("ch") => format!("{noun}es"),
        false => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_no_plural() {
        assert_eq!((counted(1u64, "time").as_str(), counted(2u64, "time").as_str()), ("1 time", "2 times"));
        assert_eq!((counted(0usize, "class").as_str(), counted(1usize, "class").as_str()), ("0 classes", "1 class"));
        assert_eq!(
            (counted(3u32, "micro-batch").as_str(), counted(1.0, "step").as_str()),
            ("3 micro-batches", "1 step")
        );
    }
}
