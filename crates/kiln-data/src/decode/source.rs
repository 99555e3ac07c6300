//! How the bytes of an image file are read, and why reading fails.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::tiff::TiffError;

use crate::caught::caught;
use crate::error::Error;

/// Bytes of an image, from a file or from memory, read in pieces of 32 KiB.
pub(crate) type Reader = BufReader<Input>;

pub(crate) const PIECE: usize = 32 * 1024;

/// Bytes that the buffer of a reader takes.
pub(crate) const READER_BYTES: u64 = PIECE as u64;

#[derive(Debug)]
pub(crate) enum Input {
    File(File),
    Bytes(Cursor<Arc<[u8]>>),
}

impl Input {
    pub(crate) fn buffered(self) -> Reader {
        BufReader::with_capacity(PIECE, self)
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => {
                let begun = Instant::now();
                let read = file.read(buffer);
                add_reading(begun.elapsed());
                read
            }
            Self::Bytes(bytes) => bytes.read(buffer),
        }
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::File(file) => file.seek(to),
            Self::Bytes(bytes) => bytes.seek(to),
        }
    }
}

thread_local! {
    /// The time that reading took on this thread since it was last asked for.
    static READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Adds the time of one read on this thread.
pub(super) fn add_reading(time: Duration) {
    READING.set(READING.get() + time);
}

/// The time that reading files took on this thread since the last call. Decoders read while they decode.
pub(crate) fn take_reading() -> Duration {
    READING.take()
}

/// The next bytes of an image; `cut` is the reason if it ends before.
pub(crate) fn take<const N: usize>(reader: &mut impl Read, cut: &str) -> Result<[u8; N], Reason> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes).map_err(|_| cut)?;
    Ok(bytes)
}

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

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl From<::png::DecodingError> for Reason {
    fn from(error: ::png::DecodingError) -> Self {
        Self::Damaged(error.to_string())
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

/// Runs `work`, which calls the decoders of other crates. These should return an error for every file, but have panicked
/// on damaged ones; a file must not end the program of a caller that has no loader around it.
///
/// The process's panic hook still prints the panic, unless the program asks
/// [`panics_are_errors`](crate::panics_are_errors). Files that are known to make a decoder panic are therefore read in
/// another way or refused before.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Reason>) -> Result<T, Reason> {
    caught(work, |message| Reason::Damaged(format!("its decoder panicked: {message}")))
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

    #[test]
    fn a_panic_becomes_a_reason() {
        let empty: &[u8] = &[];
        let index = std::hint::black_box(3);
        let reason = guarded(|| Ok(empty[index])).unwrap_err();
        assert!(matches!(&reason, Reason::Damaged(text) if text.contains("index out of bounds")), "{reason:?}");
        assert_eq!(guarded(|| Err::<(), _>("too short".into())), Err("too short".into()));
        assert_eq!(guarded(|| Ok(7)), Ok(7));
    }
}
