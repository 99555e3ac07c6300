//! Files: tensors of safetensors, and files that are written beside their place and then renamed.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::NamedTempFile;

/// A tensor as it is in a file of safetensors.
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Stored {
    pub(crate) fn f32(shape: Vec<usize>, values: &[f32]) -> Self {
        Self { dtype: Dtype::F32, shape, bytes: bytemuck::cast_slice(values).to_vec() }
    }

    pub(crate) fn of(view: &TensorView<'_>) -> Self {
        Self { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() }
    }
}

/// The tensors as safetensors takes them, in the order of their names.
pub(crate) fn views(tensors: &BTreeMap<String, Stored>) -> Result<Vec<(&str, TensorView<'_>)>, String> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, Stored { dtype, shape, bytes }) in tensors {
        views.push((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).map_err(|error| error.to_string())?));
    }
    Ok(views)
}

/// Replaces the file at `path` as a whole: at no time is there a part of it, also when the machine stops.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    put(stage(path, bytes)?, path)
}

/// The bytes on the disk beside `path`, under a name that goes away unless [`put`] replaces the file.
pub(crate) fn stage(path: &Path, bytes: &[u8]) -> std::io::Result<NamedTempFile> {
    let mut file = beside(path)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Replaces the file at `path` with what was staged for it.
pub(crate) fn put(staged: NamedTempFile, path: &Path) -> std::io::Result<()> {
    staged.persist(path)?;
    keep_name(path)
}

/// An empty file in the directory of `path`, which goes away unless it is renamed.
fn beside(path: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(path.file_name().unwrap_or_default()).suffix(".temporary");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The mode of a new file under the umask; by default only the owner may read a temporary file.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(directory(path))
}

/// Returns when the name of a file is on the disk: its directory is.
fn keep_name(path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    std::fs::File::open(directory(path))?.sync_all()?;
    Ok(())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, b"first, and longer").unwrap();
        write(&path, b"second").unwrap();
        drop(beside(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("missing/file"), b"").is_err());
        assert_eq!(directory(Path::new("file")), Path::new("."));
    }
}
