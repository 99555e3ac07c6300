//! Results on stdout.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use kiln_data::printable;
use serde::Serialize;
use serde_json::Value;

/// Prints `results` as one line of JSON.
///
/// # Errors
/// When stdout is closed.
pub fn print_json(results: &impl Serialize) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{}", json_line(results)?)?;
    Ok(())
}

/// Returns `results` as one line of JSON. Control characters from U+007F on, which JSON allows, are escaped, because a terminal would act
/// on them.
pub(crate) fn json_line(results: &impl Serialize) -> Result<String> {
    let mut line = String::new();
    for character in serde_json::to_string(results)?.chars() {
        match character.is_control() {
            true => line.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => line.push(character),
        }
    }
    Ok(line)
}

/// Returns `path` as JSON, which is UTF-8. U+FFFD replaces bytes that are not UTF-8, and a warning reports it.
pub(crate) fn path_json(path: &Path) -> Value {
    if path.to_str().is_none() {
        tracing::warn!("'{}' is not UTF-8: JSON has U+FFFD in place of the other bytes", printable(path));
    }
    Value::String(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_of_json_has_the_exact_text_and_no_control_characters() {
        let text = "a\n\u{1b}\u{7f}\u{9b}é";
        let line = super::json_line(&[text]).unwrap();
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&line).unwrap(), [text]);
    }
}
