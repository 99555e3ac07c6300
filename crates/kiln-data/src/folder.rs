use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, ImageSet};

/// Names that files are taken for images by; what they are is told by their first bytes.
const EXTENSIONS: [&str; 14] =
    ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"];

impl ImageSet {
    /// Images in one directory per class, as torchvision's `ImageFolder`: classes and files sorted
    /// by name, files passed over whose ending is not that of an image format (jpg, png, webp, gif, bmp, tif, ppm and their
    /// variants, in either case). Every image becomes RGB. A file that turns out to be none, or cannot be read, is a bad
    /// sample when it is loaded.
    ///
    /// # Errors
    /// [`Error::Read`] for a directory that cannot be listed, [`Error::NoDataSet`] when there is no
    /// class, [`Error::EmptyClass`] for a class without an image.
    pub fn folder(root: impl AsRef<Path>) -> Result<Self, Error> {
        let root = root.as_ref();
        let directories: Vec<PathBuf> = list(root)?.into_iter().filter(|path| path.is_dir()).collect();
        if directories.is_empty() {
            let reason = "expected one directory per class".into();
            return Err(Error::NoDataSet { path: root.to_owned(), reason });
        }
        let (mut paths, mut labels, mut classes) = (vec![], vec![], vec![]);
        for directory in directories {
            let class = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let images: Vec<PathBuf> = list(&directory)?.into_iter().filter(|path| is_image(path)).collect();
            if images.is_empty() {
                return Err(Error::EmptyClass { class, path: root.to_owned() });
            }
            labels.extend(std::iter::repeat_n(classes.len(), images.len()));
            paths.extend(images);
            classes.push(class);
        }
        Ok(Self::files(paths, labels, classes))
    }
}

/// The entries of a directory, sorted by name.
pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = |entries: fs::ReadDir| entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).and_then(read).map_err(|e| Error::read(directory, e))?;
    paths.sort();
    Ok(paths)
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    // A link that leads nowhere is an image that cannot be read, not one that is not there.
    EXTENSIONS.contains(&extension.as_str()) && !path.is_dir()
}
