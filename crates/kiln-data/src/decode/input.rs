use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an image, from a file or from memory, read in pieces of 32 KiB.
pub(super) type Reader = BufReader<Input>;

pub(super) const PIECE: usize = 32 * 1024;

/// Bytes that reading itself takes.
pub(super) const READER_BYTES: u64 = PIECE as u64;

#[derive(Debug)]
pub(super) enum Input {
    File(File),
    Bytes(Cursor<Arc<[u8]>>),
}

thread_local! {
    /// What reading has taken on this thread since it was last asked for.
    static READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// What reading files has taken on this thread since the last call: decoders read as they go.
pub(crate) fn take_reading() -> Duration {
    READING.take()
}

impl Input {
    pub(super) fn buffered(self) -> Reader {
        BufReader::with_capacity(PIECE, self)
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => {
                let begun = Instant::now();
                let read = file.read(buffer);
                READING.set(READING.get() + begun.elapsed());
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
