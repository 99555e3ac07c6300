//! The files of a checkpoint, their manifest, and how damage is found.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) const MODEL: &str = "model.bpk";
pub(crate) const OPTIMIZER: &str = "optimizer.bpk";
pub(crate) const STATE: &str = "state.json";
pub(crate) const MANIFEST: &str = "manifest.json";
/// The files of a checkpoint beside its manifest.
pub(super) const FILES: [&str; 3] = [MODEL, OPTIMIZER, STATE];
const VERSION: u32 = 1;
/// Bytes of a manifest, at the most: it names three files.
const LIMIT: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    files: BTreeMap<String, Fingerprint>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Fingerprint {
    bytes: u64,
    crc32: u32,
}

/// Why a checkpoint cannot be used as it is on disk.
#[derive(Debug, Error)]
pub(crate) enum Fault {
    /// Its files are not those that its manifest names.
    #[error("{0}")]
    Damaged(String),
    /// Its files could not be read, or were written by another version: it may be whole.
    #[error("{0}")]
    Unread(String),
}

impl Fault {
    /// A missing file is damage. Any other failure to read it may pass: a disk that is not mounted, too many open files.
    fn of_reading(file: &str, error: &io::Error) -> Self {
        let text = format!("{file}: {error}");
        if error.kind() == io::ErrorKind::NotFound { Self::Damaged(text) } else { Self::Unread(text) }
    }
}

/// Flushes the files of the checkpoint `path` to disk and writes its manifest.
pub(super) fn seal(path: &Path) -> Result<(), String> {
    let io = |e: io::Error| e.to_string();
    let mut files = BTreeMap::new();
    for file in FILES {
        sync(&path.join(file)).map_err(io)?;
        files.insert(file.to_owned(), fingerprint(&path.join(file)).map_err(io)?);
    }
    let manifest = serde_json::to_vec_pretty(&Manifest { version: VERSION, files }).map_err(|e| e.to_string())?;
    fs::write(path.join(MANIFEST), manifest).map_err(io)?;
    sync(&path.join(MANIFEST)).and_then(|()| sync(path)).map_err(io)
}

/// Flushes a file, or the entries of a directory, to disk.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    // The parent of a relative name is the empty path, which stands for the current directory.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// The fingerprint of a file. The file may be as large as a model; it is read in pieces.
fn fingerprint(path: &Path) -> io::Result<Fingerprint> {
    let (mut file, mut hasher) = (File::open(path)?, crc32fast::Hasher::new());
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Fingerprint { bytes, crc32: hasher.finalize() }),
            count => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
}

/// Checks every file of the checkpoint `path` against its manifest.
pub(crate) fn verify(path: &Path) -> Result<(), Fault> {
    let mut text = vec![];
    let read = File::open(path.join(MANIFEST)).and_then(|file| file.take(LIMIT + 1).read_to_end(&mut text));
    let bytes = read.map_err(|e| Fault::of_reading(MANIFEST, &e))?;
    if bytes as u64 > LIMIT {
        return Err(Fault::Damaged(format!("{MANIFEST} is larger than {LIMIT} bytes")));
    }
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| Fault::Damaged(format!("{MANIFEST} is damaged: {e}")))?;
    if manifest.version != VERSION {
        return Err(Fault::Unread(format!("its version is {}, expected {VERSION}", manifest.version)));
    }
    for file in FILES {
        let expected = manifest.files.get(file).ok_or_else(|| Fault::Damaged(format!("{MANIFEST} lacks {file}")))?;
        let found = fingerprint(&path.join(file)).map_err(|e| Fault::of_reading(file, &e))?;
        if found != *expected {
            let text = |f: &Fingerprint| format!("{} bytes with CRC-32 {:08x}", f.bytes, f.crc32);
            let (found, expected) = (text(&found), text(expected));
            return Err(Fault::Damaged(format!("{file} is damaged: {found}, expected {expected}")));
        }
    }
    Ok(())
}
