//! Files of a run: replaced completely or not at all, by one process at a time.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::error::Error;

/// The file that a process locks while it works on a run.
const LOCK: &str = "lock";
/// How often a lock is tried before it counts as held: a command that lists runs holds it for a moment.
const TRIES: u32 = 5;

/// Replaces the file `path` by `bytes`. A crash leaves the old file or the new one.
///
/// # Errors
/// Those of the file system, with the path.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || -> std::io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        let file = file.persist(path)?;
        readable(&file)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(Error::writing(path))
}

/// Temporary files are private to their user; results are not.
#[cfg(unix)]
fn readable(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable(_: &File) -> std::io::Result<()> {
    Ok(())
}

/// Keeps other processes from the run in `directory` for as long as the returned file is open. A crash of this process releases it.
///
/// # Errors
/// [`Error::InUse`], and [`Error::File`] if the lock cannot be written.
pub fn lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join(LOCK);
    let file = File::create(&path).map_err(Error::writing(&path))?;
    let mut locked = file.try_lock();
    for _ in 1..TRIES {
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(directory.to_owned())),
        Err(TryLockError::Error(reason)) => Err(Error::file("lock", &path)(reason)),
    }
}

/// Whether a process holds the lock of the run in `directory`.
pub(crate) fn is_locked(directory: &Path) -> bool {
    let file = File::open(directory.join(LOCK));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        for text in ["first", "second"] {
            super::replace(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let missing = super::replace(&folder.path().join("no/file"), b"").unwrap_err();
        assert!(missing.to_string().contains("no/file"));
    }

    #[test]
    fn a_run_belongs_to_one_process() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!super::is_locked(folder.path()));
        let held = super::lock(folder.path()).unwrap();
        assert!(super::is_locked(folder.path()));
        let refused = super::lock(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("another process"), "{refused}");
        drop(held);
        assert!(!super::is_locked(folder.path()));
        super::lock(folder.path()).unwrap();
    }
}
