//! Files of a Hugging Face folder, each of which may be missing.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::error::Error;

/// The file that a tokenizer's special tokens are in, and often the chat template.
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The text of a file, if there is one.
pub(super) fn text(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read(path) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(Error::format(path, format!("not UTF-8: {error}"))),
        },
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(Error::read(path, error)),
    }
}

/// The content of a file of JSON, null if there is none.
pub(super) fn json(path: &Path) -> Result<Value, Error> {
    let Some(text) = text(path)? else { return Ok(Value::Null) };
    serde_json::from_str(&text).map_err(|error| Error::format(path, format!("no JSON: {error}")))
}
