//! Why an image is not read, and the error that this becomes.

use std::io;
use std::path::Path;

use ::tiff::TiffError;

use crate::error::Error;

/// Why an image is not read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reason {
    /// It is damaged, or no image.
    Damaged(String),
    /// It is valid, but of a kind that is not read.
    Unsupported(String),
}

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

impl From<&str> for Reason {
    fn from(reason: &str) -> Self {
        Self::Damaged(reason.into())
    }
}

impl From<image::ImageError> for Reason {
    fn from(error: image::ImageError) -> Self {
        match error {
            image::ImageError::Unsupported(error) => Self::Unsupported(error.to_string()),
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<TiffError> for Reason {
    fn from(error: TiffError) -> Self {
        match error {
            TiffError::IoError(e) if e.kind() == io::ErrorKind::UnexpectedEof => "the TIFF ends too early".into(),
            TiffError::UnsupportedError(e) => Self::Unsupported(e.to_string()),
            other => other.to_string().into(),
        }
    }
}

/// The most characters of a reason: some libraries repeat text of the file.
const MOST: usize = 200;

/// The messages of libraries when the data end too early.
const ENDS: [&str; 4] = ["failed to fill whole buffer", "Exhausted data", "unexpected end of file", "UnexpectedEof"];

impl Reason {
    pub(crate) fn into_error(self, path: &Path) -> Error {
        let (Self::Damaged(reason) | Self::Unsupported(reason)) = &self;
        let mut reason = reason.replace('\n', " ");
        if let Some((end, _)) = reason.char_indices().nth(MOST) {
            reason.replace_range(end.., "...");
        }
        match self {
            Self::Unsupported(_) => Error::Unsupported { path: path.to_owned(), reason },
            Self::Damaged(_) if ENDS.iter().any(|text| reason.contains(text)) => {
                Error::format(path, format!("it is cut short ({reason})"))
            }
            Self::Damaged(_) => Error::format(path, reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        let error = Reason::from(format!("line\n{}", "ä".repeat(1000))).into_error(Path::new("file"));
        let text = error.to_string();
        assert!(text.ends_with("ä...") && text.lines().count() == 1 && text.chars().count() < 260, "{text}");
        let error = Reason::Unsupported("12 bits".into()).into_error(Path::new("file"));
        assert_eq!(error.to_string(), "'file' is of a kind that is not supported: 12 bits");
    }
}
