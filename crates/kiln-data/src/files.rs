//! Data sets on disk: entries of directories, names of classes, and files that get their name when they are complete.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tempfile::{Builder, NamedTempFile};
use xxhash_rust::xxh3::Xxh3Default;

use crate::error::Error;
use crate::printable::is_hidden;

/// A data set in two parts that share no sample.
#[derive(Clone, Debug)]
pub struct TrainTest<T> {
    /// The samples to train on.
    pub train: T,
    /// The samples to evaluate on.
    pub test: T,
}

/// The entries of a directory, sorted by name.
pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = |entries: fs::ReadDir| entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).and_then(read).map_err(|e| Error::read(directory, e))?;
    paths.sort();
    Ok(paths)
}

/// A file as it was found: another one in its place differs in its size or its time.
pub(crate) struct FoundFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// The time of its last change, in nanoseconds.
    modified: u128,
}

impl FoundFile {
    pub(crate) fn new(path: PathBuf) -> Result<Self, Error> {
        let data = fs::metadata(&path).map_err(|e| Error::read(&path, e))?;
        let modified = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(Self { path, bytes: data.len(), modified: modified.unwrap_or_default().as_nanos() })
    }
}

/// A number that changes when one of the files is replaced by another or written to.
pub(crate) fn fingerprint(files: &[FoundFile]) -> u128 {
    let mut hash = Xxh3Default::new();
    for FoundFile { path, bytes, modified } in files {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let path = path.as_os_str().as_encoded_bytes();
        hash.update(&(path.len() as u64).to_le_bytes());
        hash.update(path);
        hash.update(&bytes.to_le_bytes());
        hash.update(&modified.to_le_bytes());
    }
    hash.digest128()
}

/// Refuses names of classes that are not one line of text each, read from `path`: lists of classes have a name on each line.
///
/// # Errors
/// [`Error::ClassName`].
pub(crate) fn check_names<'a>(names: impl IntoIterator<Item = &'a String>, path: &Path) -> Result<(), Error> {
    match names.into_iter().find(|name| name.chars().any(is_hidden)) {
        Some(class) => Err(Error::ClassName { class: class.clone(), path: path.to_owned() }),
        None => Ok(()),
    }
}

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
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(directory(path)).map_err(|reason| Error::write(path, reason))
}

/// Flushes a complete file to the disk, gives it its name, and flushes the directory: only then is the name on the disk. A file that
/// had the name is replaced at once.
pub(crate) fn publish(file: NamedTempFile, path: &Path) -> Result<(), Error> {
    let publish = || {
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(directory(path))?.sync_all()
    };
    publish().map_err(|reason| Error::write(path, reason))
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
