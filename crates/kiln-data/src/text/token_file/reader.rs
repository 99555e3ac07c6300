//! Token ids in a file, read through a memory map.

use std::fmt;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::printable::printable;

use super::header::{HEADER, Header};

/// Token ids in a file, read through a memory map: a text may be larger than memory, and opening it takes no time.
///
/// **No process may shorten the file or change it in place while it is open**: reading a page that is gone ends the process
/// with SIGBUS, which cannot become an error. Replacing the file by renaming, as [`TokenFileWriter`](crate::TokenFileWriter)
/// does, and deleting it are safe. Clones share the map.
#[derive(Clone)]
pub struct TokenFile {
    bytes: Arc<Bytes>,
    path: Arc<Path>,
    start: usize,
    width: usize,
    vocab: usize,
    /// XXH3 of the ids' bytes, if the file has it.
    checksum: Option<u64>,
}

enum Bytes {
    Map(Mmap),
    Memory(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Map(map) => map,
            Bytes::Memory(bytes) => bytes,
        }
    }
}

impl TokenFile {
    /// Opens a file that a [`TokenFileWriter`](crate::TokenFileWriter) wrote. The ids are checked when they are read; see [`verify`](Self::verify).
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Format`] for another kind of file, another version, a damaged header, or a
    /// length that differs from the header's.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::parse(Bytes::Map(map(path)?), path)
    }

    /// Opens a file of 16-bit little-endian ids and nothing else, as nanoGPT's `prepare.py` scripts write, for a
    /// vocabulary of `vocab` ids. If it is not known, 65,536 accepts every id.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Format`] for an odd length, [`Error::InvalidSetting`] for a vocabulary that needs more bits.
    pub fn raw_u16(path: impl AsRef<Path>, vocab: usize) -> Result<Self, Error> {
        let path = path.as_ref();
        if vocab > 1 << 16 {
            let value = vocab.to_string();
            return Err(Error::InvalidSetting { field: "vocabulary", value, expected: "at most 65536, in 16 bits" });
        }
        let bytes = map(path)?;
        if !bytes.len().is_multiple_of(2) {
            return Err(Error::format(path, format!("{} bytes, expected 2 for every id", bytes.len())));
        }
        Ok(Self { bytes: Bytes::Map(bytes).into(), path: path.into(), start: 0, width: 2, vocab, checksum: None })
    }

    /// Reads a token file whose bytes, as a [`TokenFileWriter`](crate::TokenFileWriter) wrote them, are in memory.
    ///
    /// # Errors
    /// [`Error::Format`] as [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        Self::parse(Bytes::Memory(bytes), Path::new("(memory)"))
    }

    fn parse(bytes: Bytes, path: &Path) -> Result<Self, Error> {
        let header = Header::parse(&bytes).map_err(|reason| Error::format(path, reason))?;
        let vocab = usize::try_from(header.vocab).unwrap_or(usize::MAX);
        let (width, checksum) = (header.width as usize, Some(header.checksum));
        Ok(Self { bytes: bytes.into(), path: path.into(), start: HEADER, width, vocab, checksum })
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        (self.bytes.len() - self.start) / self.width
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of the vocabulary: every id that is read is below it.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Adds the ids at the positions of `range` to `ids`.
    ///
    /// # Errors
    /// [`Error::Format`] for an id that the vocabulary does not have; [`Error::InvalidSetting`] for a range that ends after
    /// [`len`](Self::len). `ids` does not change then.
    pub fn read(&self, range: Range<usize>, ids: &mut Vec<u32>) -> Result<(), Error> {
        if range.start > range.end || range.end > self.len() {
            let value = format!("{range:?} of {} ids", self.len());
            return Err(Error::InvalidSetting { field: "range", value, expected: "one within the file" });
        }
        let before = ids.len();
        let bytes = &self.bytes[self.start + range.start * self.width..self.start + range.end * self.width];
        match self.width {
            2 => ids.extend(bytes.chunks_exact(2).map(|id| u32::from(u16::from_le_bytes([id[0], id[1]])))),
            _ => ids.extend(bytes.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]))),
        }
        if let Some(at) = ids[before..].iter().position(|id| *id as usize >= self.vocab) {
            let (id, at) = (ids[before + at], range.start + at);
            ids.truncate(before);
            return Err(Error::format(&self.path, format!("id {id} at {at}, expected below {}", self.vocab)));
        }
        Ok(())
    }

    /// Reads the whole file and compares it with its checksum, if it has one.
    ///
    /// # Errors
    /// [`Error::Format`] when they differ, or for an id that the vocabulary does not have.
    pub fn verify(&self) -> Result<(), Error> {
        if self.checksum.is_some_and(|checksum| checksum != xxh3_64(&self.bytes[self.start..])) {
            return Err(Error::format(&self.path, "the checksum of its ids is wrong"));
        }
        let (len, mut ids) = (self.len(), vec![]);
        (0..len).step_by(1 << 16).try_for_each(|at| {
            ids.clear();
            self.read(at..len.min(at + (1 << 16)), &mut ids)
        })
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenFile of {} ids in '{}'", self.len(), printable(&*self.path))
    }
}

#[allow(unsafe_code, reason = "a file larger than memory is read through a memory map")]
fn map(path: &Path) -> Result<Mmap, Error> {
    let file = File::open(path).map_err(|e| Error::read(path, e))?;
    // SAFETY: the bytes are only read, as bytes, any of which are valid. They must not change while they are borrowed:
    // nothing in Kiln writes to an existing token file (a writer makes a new one and renames it), and the documentation of
    // `TokenFile` requires the same of other programs.
    unsafe { Mmap::map(&file) }.map_err(|e| Error::read(path, e))
}
