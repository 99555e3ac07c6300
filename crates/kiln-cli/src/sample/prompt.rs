//! The text to continue: from the command line, a file, or stdin.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cli::Sample;
use crate::usage::Usage;
use kiln_data::printable;

/// The prompt if none is given, as in nanoGPT.
const NONE: &str = "\n";

/// The prompt of the arguments.
pub(super) fn read(arguments: &Sample) -> Result<String> {
    let (text, whence) = match (arguments.prompt.as_deref(), arguments.prompt_file.as_deref()) {
        (None, None) => return Ok(NONE.into()),
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
        false => Ok(text),
    }
}

fn stdin() -> Result<String> {
    let mut bytes = vec![];
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
    decoded(bytes, "stdin")
}

fn decoded(bytes: Vec<u8>, whence: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Usage(format!("the prompt of {whence} is not UTF-8 at byte {at}, expected text")).into()
    })
}
