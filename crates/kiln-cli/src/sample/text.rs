//! The text to continue, from the command line, a file, or stdin, and text from bytes that arrive a few at a time.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cli::Sample;
use crate::usage::Usage;
use kiln_data::printable;

/// The prompt if none is given, as in nanoGPT.
pub(super) const NONE: &str = "\n";

/// The prompt of the arguments, if they have one.
pub(super) fn prompt(arguments: &Sample) -> Result<Option<String>> {
    let (text, whence) = match (arguments.prompt.as_deref(), arguments.prompt_file.as_deref()) {
        (None, None) => return Ok(None),
        (Some("-"), _) => (stdin()?, "stdin".to_owned()),
        (Some(text), _) => (text.to_owned(), "--prompt".to_owned()),
        (None, Some(file)) if file == Path::new("-") => (stdin()?, "stdin".to_owned()),
        (None, Some(file)) => {
            let shown = format!("'{}'", printable(&file));
            let bytes = std::fs::read(file).with_context(|| format!("cannot read {shown}"))?;
            (decoded(bytes, &shown)?, shown)
        }
    };
    match text.is_empty() {
        true => bail!(Usage(format!("the prompt of {whence} is empty, expected at least one character"))),
        false => Ok(Some(text)),
    }
}

fn stdin() -> Result<String> {
    let mut bytes = vec![];
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
    decoded(bytes, "stdin")
}

/// The text of bytes that `whence` has.
///
/// # Errors
/// [`Usage`] when they are not UTF-8.
pub(super) fn decoded(bytes: Vec<u8>, whence: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Usage(format!("the prompt of {whence} is not UTF-8 at byte {at}, expected text")).into()
    })
}

/// Decodes bytes into text. It holds back the first bytes of a character until the rest arrives.
#[derive(Default)]
pub(super) struct Utf8Stream {
    held: Vec<u8>,
}

impl Utf8Stream {
    /// The characters that `bytes` complete. Bytes that cannot be part of a character become U+FFFD.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend(bytes);
        let mut text = String::new();
        loop {
            let (valid, wrong) = match std::str::from_utf8(&self.held) {
                Ok(_) => (self.held.len(), None),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            text.push_str(&String::from_utf8_lossy(&self.held[..valid]));
            self.held.drain(..valid + wrong.unwrap_or(0));
            match wrong {
                Some(_) => text.push(char::REPLACEMENT_CHARACTER),
                None => return text,
            }
        }
    }

    /// The rest at the end: an incomplete character becomes U+FFFD.
    pub(super) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Utf8Stream;

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut stream = Utf8Stream::default();
        let whale = "🐋".as_bytes();
        assert_eq!([stream.push(b"a"), stream.push(&whale[..3]), stream.push(&whale[3..])], ["a", "", "🐋"]);
        assert_eq!([stream.push(&whale[..2]), stream.push(b"b"), stream.finish()], ["", "\u{fffd}b", ""]);
        assert_eq!([stream.push(&whale[..2]), stream.finish()], ["", "\u{fffd}"]);
    }

    proptest! {
        #[test]
        fn parts_make_the_text_of_the_whole(text in ".{0,20}", noise in prop::collection::vec(any::<u8>(), 0..8), part in 1usize..5) {
            let bytes = [text.as_bytes(), &noise, text.as_bytes()].concat();
            let mut stream = Utf8Stream::default();
            let mut read: String = bytes.chunks(part).map(|part| stream.push(part)).collect();
            read += &stream.finish();
            prop_assert_eq!(read, String::from_utf8_lossy(&bytes));
        }
    }
}
