//! Files that get their name when they are complete.

use std::fs::File;
use std::io;
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

use crate::error::Error;

/// A temporary file in the directory of `path`, so that it can be renamed. Each caller has a file of its own, which is removed if it is
/// dropped.
pub(crate) fn partial(path: &Path) -> Result<NamedTempFile, Error> {
    let name = path.file_name().unwrap_or_default();
    let mut builder = Builder::new();
    builder.prefix(name).suffix(".partial");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The mode of a new file under the umask; by default only the owner may read a temporary file.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(directory(path)).map_err(|reason| Error::Write { path: path.to_owned(), reason })
}

/// Flushes the directory of `path` to the disk: only then is the rename of a file in it on the disk.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
