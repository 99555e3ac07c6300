//! Writes reports to files, atomically.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::error::Error;

use super::memory_report::MemoryReport;

impl MemoryReport {
    /// Writes [`html`](Self::html) to a file, which is replaced completely or not at all.
    ///
    /// # Errors
    /// [`Error::Write`] when the file cannot be written; an existing file is unchanged then.
    pub fn write_html(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        replace(path.as_ref(), self.html().as_bytes())
    }

    /// Writes [`json`](Self::json) to a file, which is replaced completely or not at all.
    ///
    /// # Errors
    /// [`Error::Write`] when the file cannot be written; an existing file is unchanged then.
    pub fn write_json(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        replace(path.as_ref(), self.json().as_bytes())
    }
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask, as for other files
        let mut file = builder.tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        // The new name is durable only when the folder is.
        if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
    };
    write().map_err(|source| Error::Write { path: path.to_owned(), source })
}
