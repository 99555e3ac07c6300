use std::path::{Path, PathBuf};

/// What can go wrong between the disk and a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read.
    #[error("cannot read '{path}': {reason}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        reason: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write '{path}': {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        reason: std::io::Error,
    },
    /// A directory holds no data set of a known layout.
    #[error("no data set in '{path}': {reason}")]
    NoDataSet {
        /// The directory.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// A class directory without an image.
    #[error(
        "class '{class}' in '{path}' has no image, expected at least one file named as an image (.jpg, .png, .tif ...)"
    )]
    EmptyClass {
        /// The class's name.
        class: String,
        /// The directory of classes.
        path: PathBuf,
    },
    /// A file does not have the format its name says.
    #[error("'{path}' is damaged or of another format: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file is as it should be, but of a kind that is not read.
    #[error("'{path}' is of a kind that is not supported: {reason}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The kind.
        reason: String,
    },
    /// A sample takes more bytes for a while than a loader's budget leaves for one.
    #[error("it takes {bytes} bytes to load, expected at most {limit}")]
    NoRoom {
        /// What it takes.
        bytes: u64,
        /// What it may take.
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
    /// No sample of a batch could be read, and bad samples are left out: go on with the next batch.
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
    /// The code that finishes batches ahead of their consumer panicked.
    #[error("the code that finishes batches panicked: {message}")]
    FinishPanic {
        /// The panic's message.
        message: String,
    },
    /// The epoch was given up before the batch was made; nobody sees this who did not give it up.
    #[error("the epoch was given up")]
    Cancelled,
    /// An image that takes more bytes to decode than it may.
    #[error("'{path}', {height}x{width} pixels, takes {bytes} bytes to decode, expected at most {limit}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Bytes of the smallest way to decode it.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A setting that no loader can have.
    #[error("{field} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting's name.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// A tokenizer could not be built or used.
    #[error("tokenizer: {reason}")]
    Tokenizer {
        /// Why.
        reason: String,
    },
    /// A prediction for a tile came that was not the next.
    #[error("tile {tile} of {tiles} came, expected tile {expected}: tiles are stitched in the order of their grid")]
    TileOrder {
        /// The tile that came.
        tile: usize,
        /// The one that was to come; `tiles` when all had come.
        expected: usize,
        /// Tiles of the image.
        tiles: usize,
    },
    /// An image was to end before all of its tiles had come.
    #[error("tile {tile} of {tiles} is missing")]
    MissingTile {
        /// The first one that did not come.
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
    /// Whether one sample is to blame, so that a loader may go on without it: it is damaged, too large, gone, or the
    /// code that reads it panicked.
    pub fn is_of_a_sample(&self) -> bool {
        let of_a_file = matches!(self, Self::Read { .. } | Self::Format { .. } | Self::TooLarge { .. });
        of_a_file
            || matches!(self, Self::Unsupported { .. })
            || matches!(self, Self::NoRoom { .. } | Self::SamplePanic { .. })
    }

    /// The file it is about, if it is about one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Read { path, .. } | Self::Write { path, .. } | Self::NoDataSet { path, .. } => Some(path),
            Self::EmptyClass { path, .. } | Self::Format { path, .. } | Self::TooLarge { path, .. } => Some(path),
            Self::Unsupported { path, .. } => Some(path),
            _ => None,
        }
    }

    pub(crate) fn read(path: &Path, reason: std::io::Error) -> Self {
        Self::Read { path: path.to_owned(), reason }
    }

    pub(crate) fn format(path: &Path, reason: impl Into<String>) -> Self {
        Self::Format { path: path.to_owned(), reason: reason.into() }
    }
}
