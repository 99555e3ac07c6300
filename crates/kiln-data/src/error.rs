//! The error of this crate.

use std::path::{Path, PathBuf};

use crate::printable::printable;

/// The errors between the disk and a batch. Names of files and classes in their messages are [`printable`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read.
    #[error("cannot read '{}': {reason}", printable(path))]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        reason: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write '{}': {reason}", printable(path))]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        reason: std::io::Error,
    },
    /// A directory holds no data set of a known layout.
    #[error("no data set in '{}': {reason}", printable(path))]
    NoDataSet {
        /// The directory.
        path: PathBuf,
        /// The layout that was expected.
        reason: String,
    },
    /// A class directory without an image.
    #[error(
        "class '{}' in '{}' has no image, expected at least one file named as an image (.jpg, .png, .tif ...)",
        printable(class),
        printable(path)
    )]
    EmptyClass {
        /// The class's name.
        class: String,
        /// The directory of classes.
        path: PathBuf,
    },
    /// The name of a class has control characters, such as an end of a line. It would be several lines in a list of classes.
    #[error(
        "class '{}' in '{}' has control characters in its name, expected letters, digits, spaces and signs",
        printable(class),
        printable(path)
    )]
    ClassName {
        /// The class's name.
        class: String,
        /// The directory of classes, or the file with their names.
        path: PathBuf,
    },
    /// A file is damaged, or has another format.
    #[error("'{}' is damaged or of another format: {reason}", printable(path))]
    Format {
        /// The file.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// A record of a file cannot be used.
    #[error("'{}', line {line}: {reason}", printable(path))]
    Record {
        /// The file.
        path: PathBuf,
        /// The line that the record begins in, counted from one.
        line: u64,
        /// What it lacks, and what was expected.
        reason: String,
    },
    /// A chat template cannot be read, or refuses a conversation.
    #[error("chat template: {reason}")]
    Template {
        /// Why.
        reason: String,
    },
    /// A conversation cannot be learned from.
    #[error("conversation: {reason}")]
    Conversation {
        /// Why, and what was expected.
        reason: String,
    },
    /// A file is valid, but of a kind that is not read.
    #[error("'{}' is of a kind that is not supported: {reason}", printable(path))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The kind.
        reason: String,
    },
    /// A damaged image could be read, and the options refuse that ([`Damage::Refuse`](crate::Damage::Refuse)).
    #[error("'{}' is damaged: {damage}; its pixels could be read", printable(path))]
    Repairable {
        /// The file.
        path: PathBuf,
        /// The damage.
        damage: &'static str,
    },
    /// The pixels of a file could not be resized.
    #[error("'{}' could not be resized: {reason}", printable(path))]
    Resize {
        /// The file.
        path: PathBuf,
        /// The sizes, and why.
        reason: String,
    },
    /// Reading a sample takes more bytes than the loader's budget leaves for one.
    #[error("it takes {bytes} bytes to load, expected at most {limit}")]
    NoRoom {
        /// The bytes that it takes.
        bytes: u64,
        /// The most bytes that it may take.
        limit: u64,
    },
    /// More samples could not be read than the loader's settings allow.
    #[error("more than {at_most} samples could not be read; the last: {last}")]
    TooManyBadSamples {
        /// How many are allowed.
        at_most: usize,
        /// Why the last one could not be read.
        last: String,
    },
    /// No sample of a batch could be read, and the policy skips bad samples. Continue with the next batch.
    #[error("batch {batch} of epoch {epoch}: none of its {samples} samples could be read")]
    NothingLeft {
        /// The epoch, counted from zero.
        epoch: u64,
        /// The batch within it, counted from zero.
        batch: usize,
        /// How many samples it had.
        samples: usize,
    },
    /// The code that reads a sample panicked.
    #[error("sample {id}: the code that reads it panicked: {message}")]
    SamplePanic {
        /// The sample.
        id: usize,
        /// The panic's message.
        message: String,
    },
    /// The code that copies batches to the device ahead of the consumer panicked.
    #[error("the code that copies batches to the device panicked: {message}")]
    DevicePrefetchPanic {
        /// The panic's message.
        message: String,
    },
    /// The system has no thread for the loader.
    #[error("cannot start a thread that loads data: {reason}")]
    Thread {
        /// The operating system's answer.
        reason: std::io::Error,
    },
    /// The iterator of the epoch was dropped before the batch was made. Only code that makes batches sees this error.
    #[error("the iterator of the epoch was dropped")]
    Cancelled,
    /// Decoding an image takes more bytes than the limit.
    #[error("'{}', {height}x{width} pixels, takes {bytes} bytes to decode, expected at most {limit}", printable(path))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// The bytes of the way to decode it that takes the fewest.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A setting that is not allowed.
    #[error("{name} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting's name.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// A tokenizer could not be built or used.
    #[error("tokenizer: {reason}")]
    Tokenizer {
        /// Why.
        reason: String,
    },
    /// The prediction for a tile is not the next in the order of the grid.
    #[error("tile {tile} of {tiles} was added, expected tile {expected}: tiles are added in the order of their grid")]
    TileOrder {
        /// The tile that was added.
        tile: usize,
        /// The tile that is next; `tiles` after the last.
        expected: usize,
        /// Tiles of the image.
        tiles: usize,
    },
    /// The stitch of an image ended before all of its tiles were added.
    #[error("tile {tile} of {tiles} is missing")]
    MissingTile {
        /// The first tile that was not added.
        tile: usize,
        /// Tiles of the image.
        tiles: usize,
    },
    /// A tensor could not be read from its device.
    #[error("cannot read a tensor from its device: {reason}")]
    Device {
        /// The backend's answer.
        reason: String,
    },
    /// The code that makes a batch panicked.
    #[error("batch {batch} of epoch {epoch}: the loading code panicked: {message}")]
    Panic {
        /// The epoch, counted from zero.
        epoch: u64,
        /// The batch within it, counted from zero.
        batch: usize,
        /// The panic's message.
        message: String,
    },
}

impl Error {
    /// Whether one sample caused the error, so that a loader can continue without the sample: it is damaged, too large or
    /// missing, or the code that reads it panicked.
    pub fn is_of_a_sample(&self) -> bool {
        let of_a_file = matches!(self, Self::Read { .. } | Self::Format { .. } | Self::TooLarge { .. });
        of_a_file
            || matches!(self, Self::Unsupported { .. } | Self::Repairable { .. } | Self::Resize { .. })
            || matches!(self, Self::NoRoom { .. } | Self::SamplePanic { .. })
    }

    /// The file that caused the error, if one did.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Read { path, .. } | Self::Write { path, .. } | Self::NoDataSet { path, .. } => Some(path),
            Self::EmptyClass { path, .. } | Self::Format { path, .. } | Self::TooLarge { path, .. } => Some(path),
            Self::Unsupported { path, .. } | Self::Repairable { path, .. } | Self::Resize { path, .. } => Some(path),
            Self::ClassName { path, .. } | Self::Record { path, .. } => Some(path),
            _ => None,
        }
    }

    pub(crate) fn read(path: &Path, reason: std::io::Error) -> Self {
        Self::Read { path: path.to_owned(), reason }
    }

    pub(crate) fn write(path: &Path, reason: std::io::Error) -> Self {
        Self::Write { path: path.to_owned(), reason }
    }

    pub(crate) fn no_data_set(path: &Path, reason: impl Into<String>) -> Self {
        Self::NoDataSet { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn setting(field: &'static str, value: impl Into<String>, expected: &'static str) -> Self {
        Self::InvalidSetting { name: field, value: value.into(), expected }
    }

    pub(crate) fn format(path: &Path, reason: impl Into<String>) -> Self {
        Self::Format { path: path.to_owned(), reason: reason.into() }
    }
}
