//! Generated texts on stdout: while they are generated, or as lines of JSON.

use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::Result;
use serde_json::json;

use super::generate::{Consumer, End, Generated};
use crate::output::print_json;

/// Stands between two texts, as in nanoGPT.
const BETWEEN: &str = "---------------\n";

/// The destination of texts.
pub(super) struct Output<'a> {
    is_json: bool,
    prompt: &'a str,
    is_terminal: bool,
}

impl<'a> Output<'a> {
    pub(super) fn new(is_json: bool, prompt: &'a str) -> Self {
        Self { is_json, prompt, is_terminal: std::io::stdout().is_terminal() }
    }

    /// Begins text `sample` with its prompt.
    pub(super) fn begin(&self, sample: usize) -> Result<()> {
        if sample > 0 {
            self.text(BETWEEN)?;
        }
        self.text(self.prompt)?;
        Ok(())
    }

    /// Writes characters of a text.
    pub(super) fn text(&self, text: &str) -> Result<Consumer> {
        if self.is_json || text.is_empty() {
            return Ok(Consumer::Open);
        }
        let text = if self.is_terminal { visible(text) } else { text.to_owned() };
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(Consumer::Open),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Consumer::Closed),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends a text.
    pub(super) fn end(&self, sample: usize, generated: &Generated, seed: u64) -> Result<()> {
        let Generated { text, tokens, seconds, end } = generated;
        if !self.is_json {
            if *end != End::Closed {
                self.text("\n")?;
            }
            return Ok(());
        }
        print_json(&json!({
            "sample": sample,
            "prompt": self.prompt,
            "text": text,
            "tokens": tokens,
            "interrupted": *end == End::Interrupted,
            "seed": seed,
            "seconds": seconds,
        }))
    }
}

/// The text without characters that would move a terminal's cursor or change its state.
fn visible(text: &str) -> String {
    let shown = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_text_cannot_steer_a_terminal() {
        assert_eq!(super::visible("a\tb\n\u{1b}[2Jé\r"), "a\tb\n\u{fffd}[2Jé\u{fffd}");
    }
}
