use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, ImageSet};

/// Names that files are taken for images by; what they are is told by their first bytes.
const EXTENSIONS: [&str; 14] =
    ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"];

impl ImageSet {
    /// Images in one directory per class and the directories below it, as torchvision's `ImageFolder`: classes, directories and
    /// files sorted by name. Files whose ending is not that of an image format (jpg, png, webp, gif, bmp, tif, ppm and their
    /// variants, in either case) are passed over, and one warning (`tracing`) says how many; so are links that lead back
    /// into a directory they are in. Every image becomes RGB. A file that turns out to be none, or cannot be read, is a
    /// bad sample when it is loaded.
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
        let (mut paths, mut labels, mut classes, mut others) = (vec![], vec![], vec![], 0);
        for directory in directories {
            let class = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (images, passed) = images_below(&directory)?;
            others += passed;
            if images.is_empty() {
                return Err(Error::EmptyClass { class, path: root.to_owned() });
            }
            labels.extend(std::iter::repeat_n(classes.len(), images.len()));
            paths.extend(images);
            classes.push(class);
        }
        if others > 0 {
            tracing::warn!("'{}': {others} files passed over that are not named as images", root.display());
        }
        Ok(Self::files(paths, labels, classes))
    }
}

/// The images in a directory and those below it, and the number of other files. In torchvision's order: directories by path,
/// the files of each by name.
fn images_below(class: &Path) -> Result<(Vec<PathBuf>, usize), Error> {
    let (mut directories, mut open) = (vec![], vec![(class.to_owned(), vec![])]);
    while let Some((directory, mut above)) = open.pop() {
        // A link may lead back to where it is.
        let place = directory.canonicalize().map_err(|e| Error::read(&directory, e))?;
        if above.contains(&place) {
            continue;
        }
        above.push(place);
        let (inner, files): (Vec<_>, Vec<_>) = list(&directory)?.into_iter().partition(|path| path.is_dir());
        open.extend(inner.into_iter().map(|directory| (directory, above.clone())));
        directories.push((directory, files));
    }
    directories.sort_by(|(a, _), (b, _)| a.as_os_str().cmp(b.as_os_str()));
    let files = directories.into_iter().flat_map(|(_, files)| files);
    let (images, others): (Vec<_>, Vec<_>) = files.partition(|path| is_image(path));
    Ok((images, others.len()))
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
    EXTENSIONS.contains(&extension.as_str())
}
