//! Messages of failures, in the format of kiln-recovery's table, so that a maintainer can add them.

use std::path::Path;

use anyhow::Result;
use kiln_recovery::{Failure, Kind};
use serde::Serialize;

use kiln_runs::replace;

#[derive(Serialize)]
pub(crate) struct Message {
    source: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    consequence: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    text: String,
}

#[derive(Serialize)]
struct Messages<'a> {
    message: &'a [Message],
}

impl Message {
    /// Classifies `text`, which stays unchanged, by kiln-recovery.
    pub(crate) fn new(source: impl Into<String>, text: impl Into<String>) -> Self {
        let (source, text) = (source.into(), text.into());
        let failure = Failure::from_text(&text);
        let kind = match failure.as_ref().map(Failure::kind) {
            None => "none",
            Some(Kind::OutOfMemory) => "out-of-memory",
            Some(Kind::TooBig) => "too-big",
            Some(Kind::DeviceLost) => "device-lost",
            Some(_) => "other",
        };
        let consequence = failure.as_ref().is_some_and(Failure::is_consequence);
        Self { source, kind, consequence, bytes: failure.and_then(|failure| failure.bytes()), text }
    }

    /// Whether kiln-recovery would retry.
    pub(crate) fn is_recoverable(&self) -> bool {
        matches!(self.kind, "out-of-memory" | "too-big")
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

pub(crate) fn write(folder: &Path, messages: &[Message]) -> Result<()> {
    let text = toml::to_string_pretty(&Messages { message: messages })?;
    Ok(replace(&folder.join("messages.toml"), text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_as_the_table_of_kiln_recovery_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let messages = [
            Message::new(
                "a card, zeros",
                "An IO error happened\nCaused by:\n  out of device memory allocating 64 bytes",
            ),
            Message::new("a card, read", "Memory location was never initialized"),
            Message::new("a card, a shape", "shapes differ"),
        ];
        write(folder.path(), &messages).unwrap();
        let table: toml::Table = std::fs::read_to_string(folder.path().join("messages.toml")).unwrap().parse().unwrap();
        let read = table["message"].as_array().unwrap();
        assert_eq!((read[0]["kind"].as_str(), read[0]["bytes"].as_integer()), (Some("out-of-memory"), Some(64)));
        assert_eq!((read[1]["consequence"].as_bool(), read[2]["kind"].as_str()), (Some(true), Some("none")));
        assert!(read[0]["text"].as_str().unwrap().contains("Caused by:\n"));
        assert!(messages[0].is_recoverable() && !messages[2].is_recoverable());
    }
}
