//! Writes a token file, which replaces the one of its name at once.

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use xxhash_rust::xxh3::Xxh3Default;

use crate::error::Error;
use crate::partial::{partial, sync_directory};

use super::header::Header;
use super::reader::TokenFile;

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

    fn put(&mut self, write: impl FnOnce(&mut BufWriter<NamedTempFile>) -> std::io::Result<()>) -> Result<(), Error> {
        write(&mut self.file).map_err(|reason| Error::Write { path: self.path.clone(), reason })
    }

    /// Adds `ids`.
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::InvalidSetting`] for an id that the vocabulary does not have: no id is added then.
    pub fn write(&mut self, ids: &[u32]) -> Result<(), Error> {
        if let Some(id) = ids.iter().find(|id| u64::from(**id) >= self.header.vocab) {
            let value = format!("{id} in a vocabulary of {}", self.header.vocab);
            return Err(Error::InvalidSetting { field: "id", value, expected: "one below the size of the vocabulary" });
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
            file.flush()?;
            file.get_ref().as_file().sync_all()
        })?;
        let Self { path, file, .. } = self;
        let failed = |reason| Error::Write { path: path.clone(), reason };
        let file = file.into_inner().map_err(|e| failed(e.into_error()))?;
        file.persist(&path).map_err(|e| failed(e.error))?;
        sync_directory(&path).map_err(failed)?;
        TokenFile::open(&path)
    }
}
