//! Token ids in files that may be larger than memory: the header, the writer, the reader.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::NamedTempFile;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::error::Error;
use crate::files::{partial, publish};
use crate::printable::printable;

/// Token ids, in memory or in a file.
#[derive(Clone, Debug)]
pub(crate) enum Tokens {
    Memory(Arc<[u32]>),
    File(TokenFile),
}

impl Tokens {
    pub(crate) fn len(&self) -> usize {
        match self {
            Tokens::Memory(ids) => ids.len(),
            Tokens::File(file) => file.len(),
        }
    }

    /// Adds the ids at the positions of `range` to `ids`. The range ends at [`len`](Self::len) at most.
    pub(crate) fn read(&self, range: Range<usize>, ids: &mut Vec<u32>) -> Result<(), Error> {
        match self {
            Tokens::Memory(tokens) => {
                ids.extend_from_slice(&tokens[range]);
                Ok(())
            }
            Tokens::File(file) => file.read(range, ids),
        }
    }
}

/// Token ids in a file that is read where they are needed: a text may be larger than memory, opening it takes no time, and the process has
/// none of it in memory. Replacing the file by renaming, as [`TokenFileWriter`](crate::TokenFileWriter) does, and deleting it are safe while
/// it is open. Clones share the file.
#[derive(Clone)]
pub struct TokenFile {
    source: Arc<Source>,
    path: Arc<Path>,
    start: usize,
    width: usize,
    vocab: usize,
    /// XXH3 of the ids' bytes, if the file has it.
    checksum: Option<u64>,
}

enum Source {
    File(File, u64),
    Memory(Vec<u8>),
}

impl Source {
    fn open(path: &Path) -> Result<Self, Error> {
        let open = || {
            let file = File::open(path)?;
            let data = file.metadata()?;
            match data.is_file() {
                true => Ok(Self::File(file, data.len())),
                false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
            }
        };
        open().map_err(|e| Error::read(path, e))
    }

    /// Number of bytes.
    fn len(&self) -> usize {
        match self {
            Self::File(_, bytes) => usize::try_from(*bytes).unwrap_or(usize::MAX),
            Self::Memory(bytes) => bytes.len(),
        }
    }

    /// Up to `most` bytes from a position on.
    fn read(&self, at: usize, most: usize) -> io::Result<Vec<u8>> {
        let range = at..self.len().min(at + most);
        match self {
            Self::File(file, _) => {
                let mut bytes = vec![0; range.len()];
                read_exact_at(file, &mut bytes, at as u64)?;
                Ok(bytes)
            }
            Self::Memory(bytes) => Ok(bytes[range].to_vec()),
        }
    }
}

/// Reads from a position, which other threads that read the file do not move.
fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, bytes, at);
    #[cfg(windows)]
    {
        let mut read = 0;
        while read < bytes.len() {
            match std::os::windows::fs::FileExt::seek_read(file, &mut bytes[read..], at + read as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => read += more,
            }
        }
        Ok(())
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
        Self::parse(Source::open(path)?, path)
    }

    /// Opens a file of 16-bit little-endian ids and nothing else, as nanoGPT's `prepare.py` scripts write, for a
    /// vocabulary of `vocab` ids. If it is not known, 65,536 accepts every id.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Format`] for an odd length, [`Error::InvalidSetting`] for a vocabulary that needs more bits.
    pub fn raw_u16(path: impl AsRef<Path>, vocab: usize) -> Result<Self, Error> {
        let path = path.as_ref();
        if vocab > 1 << 16 {
            return Err(Error::setting("vocabulary", vocab.to_string(), "at most 65536, in 16 bits"));
        }
        let source = Source::open(path)?;
        if !source.len().is_multiple_of(2) {
            return Err(Error::format(path, format!("{} bytes, expected 2 for every id", source.len())));
        }
        Ok(Self { source: source.into(), path: path.into(), start: 0, width: 2, vocab, checksum: None })
    }

    /// Reads a token file whose bytes, as a [`TokenFileWriter`](crate::TokenFileWriter) wrote them, are in memory.
    ///
    /// # Errors
    /// [`Error::Format`] as [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        Self::parse(Source::Memory(bytes), Path::new("(memory)"))
    }

    fn parse(source: Source, path: &Path) -> Result<Self, Error> {
        let header = source.read(0, HEADER).map_err(|e| Error::read(path, e))?;
        let header = Header::parse(&header, source.len()).map_err(|reason| Error::format(path, reason))?;
        let vocab = usize::try_from(header.vocab).unwrap_or(usize::MAX);
        let (width, checksum) = (header.width as usize, Some(header.checksum));
        Ok(Self { source: source.into(), path: path.into(), start: HEADER, width, vocab, checksum })
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        (self.source.len() - self.start) / self.width
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
    /// [`Error::Read`]; [`Error::Format`] for an id that the vocabulary does not have; [`Error::InvalidSetting`] for a range that ends after
    /// [`len`](Self::len). `ids` does not change then.
    pub fn read(&self, range: Range<usize>, ids: &mut Vec<u32>) -> Result<(), Error> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::setting("range", format!("{range:?} of {} ids", self.len()), "one within the file"));
        }
        self.decode(&self.bytes(range.clone())?, range.start, ids)
    }

    /// Adds the ids in `bytes`, of which the first is at position `first`, to `ids`, or changes nothing.
    fn decode(&self, bytes: &[u8], first: usize, ids: &mut Vec<u32>) -> Result<(), Error> {
        let before = ids.len();
        match self.width {
            2 => ids.extend(bytes.chunks_exact(2).map(|id| u32::from(u16::from_le_bytes([id[0], id[1]])))),
            _ => ids.extend(bytes.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]))),
        }
        if let Some(at) = ids[before..].iter().position(|id| *id as usize >= self.vocab) {
            let (id, at) = (ids[before + at], first + at);
            ids.truncate(before);
            return Err(Error::format(&self.path, format!("id {id} at {at}, expected below {}", self.vocab)));
        }
        Ok(())
    }

    /// The bytes of the ids at the positions of `range`.
    fn bytes(&self, range: Range<usize>) -> Result<Vec<u8>, Error> {
        let bytes = self.source.read(self.start + range.start * self.width, range.len() * self.width);
        bytes.map_err(|e| Error::read(&self.path, e))
    }

    /// Reads the whole file and compares it with its checksum, if it has one.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Format`] when they differ, or for an id that the vocabulary does not have.
    pub fn verify(&self) -> Result<(), Error> {
        let (len, mut hash, mut ids) = (self.len(), Xxh3Default::new(), vec![]);
        let mut known = Ok(());
        for first in (0..len).step_by(1 << 16) {
            let bytes = self.bytes(first..len.min(first + (1 << 16)))?;
            hash.update(&bytes);
            ids.clear();
            known = known.and_then(|()| self.decode(&bytes, first, &mut ids));
        }
        // Where the file is damaged, an unknown id is not what its writer wrote.
        if self.checksum.is_some_and(|checksum| checksum != hash.digest()) {
            return Err(Error::format(&self.path, "the checksum of its ids is wrong"));
        }
        known
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenFile of {} ids in '{}'", self.len(), printable(&*self.path))
    }
}

/// Writes a [`TokenFile`] piece by piece, into a temporary file beside it. [`finish`](Self::finish) gives the complete
/// file its name; a writer that is dropped before leaves no file.
pub struct TokenFileWriter {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    header: Header,
    checksum: Xxh3Default,
}

impl TokenFileWriter {
    /// A file at `path` of ids below `vocab`, in 16 bits each when `vocab` allows, otherwise in 32.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn create(path: impl AsRef<Path>, vocab: usize) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let file = partial(&path)?;
        let (header, checksum) = (Header::new(vocab as u64), Xxh3Default::new());
        let mut writer = Self { path, file: BufWriter::with_capacity(1 << 18, file), header, checksum };
        let placeholder = writer.header.bytes();
        writer.put(|file| file.write_all(&placeholder))?;
        Ok(writer)
    }

    fn put(&mut self, write: impl FnOnce(&mut BufWriter<NamedTempFile>) -> io::Result<()>) -> Result<(), Error> {
        write(&mut self.file).map_err(|reason| Error::write(&self.path, reason))
    }

    /// Adds `ids`.
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::InvalidSetting`] for an id that the vocabulary does not have: no id is added then.
    pub fn write(&mut self, ids: &[u32]) -> Result<(), Error> {
        if let Some(id) = ids.iter().find(|id| u64::from(**id) >= self.header.vocab) {
            let value = format!("{id} in a vocabulary of {}", self.header.vocab);
            return Err(Error::setting("id", value, "one below the size of the vocabulary"));
        }
        let bytes: Vec<u8> = match self.header.width {
            2 => ids.iter().flat_map(|id| (*id as u16).to_le_bytes()).collect(),
            _ => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        };
        self.put(|file| file.write_all(&bytes))?;
        self.checksum.update(&bytes);
        self.header.count += ids.len() as u64;
        Ok(())
    }

    /// Completes the file, flushes it to the disk, gives it its name, and opens it. A file that had the name is replaced
    /// at once: a reader finds the old file or the new one.
    ///
    /// # Errors
    /// [`Error::Write`], [`Error::Read`].
    pub fn finish(mut self) -> Result<TokenFile, Error> {
        self.header.checksum = self.checksum.digest();
        let header = self.header.bytes();
        self.put(|file| {
            file.seek(SeekFrom::Start(0))?; // flushes what is buffered
            file.write_all(&header)?;
            file.flush()
        })?;
        let Self { path, file, .. } = self;
        publish(file.into_inner().map_err(|e| Error::write(&path, e.into_error()))?, &path)?;
        TokenFile::open(&path)
    }
}

const MAGIC: [u8; 8] = *b"KilnToks";
const VERSION: u32 = 1;
/// Bytes of a header.
const HEADER: usize = 48;

/// The fields of a header, all numbers in little-endian order:
///
/// | Bytes | |
/// |---|---|
/// | 0..8 | `KilnToks` |
/// | 8..12 | version, 1 |
/// | 12..16 | bytes per id, 2 or 4 |
/// | 16..24 | number of ids |
/// | 24..32 | size of the vocabulary |
/// | 32..40 | XXH3 of the ids' bytes |
/// | 40..48 | XXH3 of bytes 0..40 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    width: u32,
    count: u64,
    vocab: u64,
    checksum: u64,
}

impl Header {
    /// Ids of 2 bytes if the vocabulary fits, otherwise of 4.
    fn new(vocab: u64) -> Self {
        Self { width: if vocab <= 1 << 16 { 2 } else { 4 }, count: 0, vocab, checksum: 0 }
    }

    fn bytes(&self) -> [u8; HEADER] {
        let (version, width) = (VERSION.to_le_bytes(), self.width.to_le_bytes());
        let [count, vocab, checksum] = [self.count, self.vocab, self.checksum].map(u64::to_le_bytes);
        let said = [&MAGIC[..], &version, &width, &count, &vocab, &checksum].concat();
        let mut bytes = [0; HEADER];
        bytes[..HEADER - 8].copy_from_slice(&said);
        bytes[HEADER - 8..].copy_from_slice(&xxh3_64(&said).to_le_bytes());
        bytes
    }

    /// The header that a file of so many bytes begins with, or the reason why it is not valid.
    fn parse(beginning: &[u8], bytes: usize) -> Result<Self, String> {
        let Some(header) = beginning.first_chunk::<HEADER>() else {
            return Err(format!("{bytes} bytes, expected a header of {HEADER}"));
        };
        if header[..8] != MAGIC {
            return Err("it does not begin as a token file (a file of ids alone is opened as such)".into());
        }
        let half = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let number = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        match half(8) {
            VERSION => {}
            other if other.swap_bytes() == VERSION => {
                return Err("its numbers are big-endian, expected little-endian".into());
            }
            other => return Err(format!("version {other}, expected {VERSION}")),
        }
        if number(HEADER - 8) != xxh3_64(&header[..HEADER - 8]) {
            return Err("the header's checksum is wrong".into());
        }
        let header = Self { width: half(12), count: number(16), vocab: number(24), checksum: number(32) };
        if !matches!(header.width, 2 | 4) {
            return Err(format!("{} bytes per id, expected 2 or 4", header.width));
        }
        let (there, said) = ((bytes - HEADER) as u64, header.count.checked_mul(header.width.into()));
        if said != Some(there) {
            return Err(format!("{there} bytes of ids, expected {} ids of {} bytes", header.count, header.width));
        }
        Ok(header)
    }
}
