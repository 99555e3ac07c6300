//! Parts of a tensor that are joined outside of memory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Bytes;
use burn_pack::Error;

/// The name of the file.
pub(super) const JOINED: &str = "joined.tmp";

/// Joins parts to bytes that are read when they are used: in a file, which is removed with this, or else in memory.
#[derive(Clone, Default)]
pub(super) struct Joined(Option<Arc<Scratch>>);

struct Scratch(PathBuf);

impl Joined {
    /// Joins parts in a file at `path`.
    pub(super) fn at(path: PathBuf) -> Self {
        Self(Some(Arc::new(Scratch(path))))
    }

    /// The bytes of all parts. Those of a file are valid until the next call. A single part stays in memory.
    ///
    /// # Errors
    /// That of a part, and of the file.
    pub(super) fn of(&self, parts: impl ExactSizeIterator<Item = Result<Vec<u8>, Error>>) -> Result<Bytes, Error> {
        let Some(Scratch(path)) = self.0.as_deref().filter(|_| parts.len() > 1) else {
            let mut joined = vec![];
            for part in parts {
                joined.extend_from_slice(&part?);
            }
            return Ok(Bytes::from_bytes_vec(joined));
        };
        let fail = |e: io::Error| Error::IoError(format!("{}: {e}", path.display()));
        let (mut file, mut length) = (File::create(path).map_err(fail)?, 0);
        for part in parts {
            let part = part?;
            length += part.len() as u64;
            file.write_all(&part).map_err(fail)?;
        }
        Ok(Bytes::from_file(path, length, 0))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
