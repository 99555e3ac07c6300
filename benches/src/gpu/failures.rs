//! Converts panics to errors, and messages to one line.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};

/// Calls `f`, and converts a panic to an error.
pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(anyhow!("panicked: {}", text.as_deref().unwrap_or("without a message")))
    })
}

/// A message without backtraces, cut to the length that fits into a table.
pub(crate) fn one_line(text: &str) -> String {
    let frame = |line: &str| line.starts_with("at ") || line.starts_with(|c: char| c.is_ascii_digit());
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !frame(line));
    let line = lines.collect::<Vec<_>>().join(" / ");
    line.chars().take(600).collect()
}

/// The last `count` characters.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let skipped = text.chars().count().saturating_sub(count);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_line_without_backtraces() {
        assert_eq!(
            one_line("it failed\n   0: main\n      at src/main.rs:1\nout of memory\n"),
            "it failed / out of memory"
        );
        assert_eq!(tail("a longer text", 4), "text");
    }

    #[test]
    fn a_panic_is_an_error() {
        let error = caught::<()>(|| panic!("no row {}", 7)).unwrap_err();
        assert_eq!(error.to_string(), "panicked: no row 7");
    }
}
