//! Files that are replaced completely or not at all.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::printable;
use tempfile::NamedTempFile;

/// Replaces the file `path` by `bytes`. A crash leaves the old file or the new one.
///
/// # Errors
/// Those of the file system, with the path.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        let file = file.persist(path)?;
        readable(&file)?;
        File::open(folder)?.sync_all()
    };
    write().with_context(|| format!("cannot write '{}'", printable(&path)))
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
        assert!(format!("{missing:#}").contains("no/file"));
    }
}
