//! Lists the entries of a directory in a fixed order.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The entries of a directory, sorted by name.
pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = |entries: fs::ReadDir| entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).and_then(read).map_err(|e| Error::read(directory, e))?;
    paths.sort();
    Ok(paths)
}
