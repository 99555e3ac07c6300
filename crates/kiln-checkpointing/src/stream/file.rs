//! A store in a directory.
//!
//! Each blob has two files, `7-value.0` and `7-value.1`: one is the current version and the other one the next. Part 2 of a parameter is
//! in `7+2-value.0`. `store.json` says which
//! version of each blob is current, with length and CRC-32. A commit writes it under another name and renames it, so that all versions
//! become current at once; files of versions that were never committed are written over.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::ahead::Ahead;
use super::store::{Blob, Content, Store};
use crate::Error;

const INDEX: &str = "store.json";
const LOCK: &str = "lock";
const FORMAT: u32 = 2;
/// Bytes that are read at once.
const PIECE: usize = 32 << 10;

/// A store in a directory of a disk. It outlives the process: after a commit, and until the next, it is the run after that step.
///
/// One process uses it at a time. It is safe against the end of the process at any moment. With [`durable`](Self::durable) it is also safe
/// against the loss of power.
#[derive(Debug)]
pub struct FileStore {
    directory: PathBuf,
    durable: bool,
    index: Mutex<Index>,
    /// Next versions that are written: their length and CRC-32.
    next: Mutex<BTreeMap<Blob, Version>>,
    ahead: Ahead,
    /// Held as long as the store is used.
    _lock: File,
}

/// What `store.json` has.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Index {
    format: u32,
    note: Option<String>,
    blobs: Vec<(Blob, Version)>,
    /// The current versions by blob.
    #[serde(skip)]
    current: BTreeMap<Blob, Version>,
}

/// A version of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Version {
    /// Which of the two files.
    file: u8,
    bytes: u64,
    crc32: u32,
}

impl FileStore {
    /// The store in `directory`, which is made if it does not exist.
    ///
    /// # Errors
    /// [`Error::Store`] for a directory that cannot be written, that another process uses, that has other files, or whose index is
    /// damaged or of another version of Kiln.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let directory = directory.as_ref().to_owned();
        let fail = |reason: &dyn Display| failure(&directory, reason);
        fs::create_dir_all(&directory).map_err(|e| fail(&e))?;
        let has_index = directory.join(INDEX).exists();
        if let Some(other) = stranger(&directory).map_err(|e| fail(&e))?.filter(|_| !has_index) {
            return Err(fail(&format!("it has a file '{other}', expected a store or an empty directory")));
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(directory.join(LOCK));
        let lock = lock.map_err(|e| fail(&e))?;
        lock.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => fail(&"this process or another one uses it"),
            TryLockError::Error(e) => fail(&format!("{LOCK}: {e}")),
        })?;
        let index = match fs::read(directory.join(INDEX)) {
            Ok(text) => Index::read(&text).map_err(|reason| fail(&format!("{INDEX} {reason}")))?,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Index { format: FORMAT, note: None, blobs: vec![], current: BTreeMap::new() }
            }
            Err(e) => return Err(fail(&format!("{INDEX}: {e}"))),
        };
        Ok(Self {
            directory,
            durable: false,
            index: Mutex::new(index),
            next: Mutex::default(),
            ahead: Ahead::default(),
            _lock: lock,
        })
    }

    /// Writes each commit through to the disk before it returns. Without, the system writes when it likes to: a step then takes less time,
    /// and after a loss of power the store may be damaged, which is found when it is read.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> MutexGuard<'_, BTreeMap<Blob, Version>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, blob: Blob, file: u8) -> PathBuf {
        let part = if blob.part == 0 { String::new() } else { format!("+{}", blob.part) };
        self.directory.join(format!("{}{part}-{}.{file}", blob.parameter, blob.content))
    }

    /// Writes a file over its old content, whose place on the disk it keeps.
    fn overwrite(path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.write_all(bytes)?;
        file.set_len(bytes.len() as u64)?;
        if durable { file.sync_all() } else { Ok(()) }
    }

    fn read_version(&self, blob: Blob, version: Version, take: &mut dyn FnMut(&[u8], usize)) -> Result<(), Error> {
        let (path, mut crc32, mut read) = (self.path(blob, version.file), crc32fast::Hasher::new(), 0);
        let mut piece = [0; PIECE];
        let mut file = File::open(&path).map_err(|e| failure(&path, &e))?;
        loop {
            let count = match file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(failure(&path, &e)),
            };
            read += count as u64;
            crc32.update(&piece[..count]);
            take(&piece[..count], version.bytes.saturating_sub(read) as usize);
        }
        let found = Version { bytes: read, crc32: crc32.finalize(), ..version };
        match found == version {
            true => Ok(()),
            false => {
                let text = |version: Version| format!("{} bytes with CRC-32 {:08x}", version.bytes, version.crc32);
                Err(failure(&path, &format!("it is damaged: {}, expected {}", text(found), text(version))))
            }
        }
    }

    /// Replaces the index on disk and in memory at once. What is synced afterwards may fail, and a repeated call syncs it.
    fn replace_index(&self, index: &mut Index, changed: Index) -> Result<(), Error> {
        let fail = |e: io::Error| failure(&self.directory, &format!("{INDEX}: {e}"));
        let text = serde_json::to_vec(&changed).map_err(|e| failure(&self.directory, &e))?;
        let new = self.directory.join(format!("{INDEX}.new"));
        Self::overwrite(&new, &text, self.durable).map_err(fail)?;
        fs::rename(&new, self.directory.join(INDEX)).map_err(fail)?;
        *index = changed;
        if self.durable {
            File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(fail)
        } else {
            Ok(())
        }
    }
}

impl Store for FileStore {
    fn read(&self, blob: Blob, take: &mut dyn FnMut(&[u8], usize)) -> Result<bool, Error> {
        let version = match blob.content {
            content if content.is_of_step() => self.next().get(&blob).copied(),
            _ => self.index().current.get(&blob).copied(),
        };
        version.map_or(Ok(false), |version| self.read_version(blob, version, take).map(|()| true))
    }

    fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        let current = self.index().current.get(&blob).copied();
        let file = current.map_or(0, |version| 1 - version.file);
        self.next().remove(&blob);
        let path = self.path(blob, file);
        let durable = self.durable && !blob.content.is_of_step();
        Self::overwrite(&path, bytes, durable).map_err(|e| failure(&path, &e))?;
        let crc32 = crc32fast::hash(bytes);
        self.next().insert(blob, Version { file, bytes: bytes.len() as u64, crc32 });
        Ok(())
    }

    fn commit(&self, blobs: &[Blob], note: &str) -> Result<(), Error> {
        let mut index = self.index();
        let (mut changed, mut next) = (index.clone(), self.next());
        for blob in blobs {
            let version =
                next.get(blob).ok_or_else(|| failure(&self.directory, &format!("{blob} has no next version")))?;
            changed.current.insert(*blob, *version);
        }
        changed.note = Some(note.to_owned());
        changed.blobs = changed.current.iter().map(|(blob, version)| (*blob, *version)).collect();
        self.replace_index(&mut index, changed)?;
        next.clear();
        Ok(())
    }

    fn note(&self) -> Result<Option<String>, Error> {
        Ok(self.index().note.clone())
    }

    fn read_ahead(&self, blobs: &[Blob]) {
        let index = self.index();
        let version = |blob: &Blob| index.current.get(blob).map(|version| self.path(*blob, version.file));
        self.ahead.begin(blobs.iter().filter_map(version).collect());
    }
}

impl Index {
    fn read(text: &[u8]) -> Result<Self, String> {
        let mut index: Self = serde_json::from_slice(text).map_err(|e| format!("is damaged: {e}"))?;
        if index.format != FORMAT {
            return Err(format!("has format {}, expected {FORMAT}", index.format));
        }
        if let Some((blob, version)) = index.blobs.iter().find(|(_, version)| version.file > 1) {
            return Err(format!("is damaged: file {} of {blob}, expected 0 or 1", version.file));
        }
        index.current = index.blobs.iter().copied().collect();
        Ok(index)
    }
}

/// A file in a directory without an index that no store has written.
fn stranger(directory: &Path) -> io::Result<Option<String>> {
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let of_blob = name.split_once('-').is_some_and(|(number, rest)| {
            let known = Content::ALL;
            let names = known.iter().flat_map(|content| [0, 1].map(|file| format!("{content}.{file}")));
            number.split('+').all(|number| number.parse::<usize>().is_ok())
                && names.into_iter().any(|name| name == rest)
        });
        if name != LOCK && name != format!("{INDEX}.new") && !of_blob {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn failure(path: &Path, reason: &dyn Display) -> Error {
    Error::Store { path: path.display().to_string(), reason: reason.to_string() }
}
