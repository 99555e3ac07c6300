//! The bytes of an image, from a file or from memory, read in pieces.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Instant;

use super::read_clock::add_reading;

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
