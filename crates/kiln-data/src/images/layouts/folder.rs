//! Images in one directory per class.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::files::{check_names, list};
use crate::images::image_set::ImageSet;
use crate::printable::printable;

/// The extensions of image files. The format itself is told by the first bytes of a file.
const EXTENSIONS: [&str; 14] =
    ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"];

impl ImageSet {
    /// Images in one directory per class and the directories below it, as torchvision's `ImageFolder`: classes, directories
    /// and files are sorted by name. Files without the extension of an image format (jpg, png, webp, gif, bmp, tif, ppm and
    /// their variants, in upper or lower case) are skipped, and one warning (`tracing`) counts them. Links to a directory
    /// above them are skipped too. Every image becomes RGB. A file that is no image, or cannot be read, is a bad sample
    /// when it is loaded.
    ///
    /// # Errors
    /// [`Error::Read`] for a directory that cannot be listed, [`Error::NoDataSet`] when there is no
    /// class, [`Error::EmptyClass`] for a class without an image, [`Error::ClassName`] for one whose name has control characters.
    pub fn folder(root: impl AsRef<Path>) -> Result<Self, Error> {
        let root = root.as_ref();
        let directories: Vec<PathBuf> = list(root)?.into_iter().filter(|path| path.is_dir()).collect();
        if directories.is_empty() {
            return Err(Error::no_data_set(root, "expected one directory per class"));
        }
        let (mut paths, mut labels, mut classes, mut others) = (vec![], vec![], vec![], 0);
        for directory in directories {
            let class = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            check_names([&class], root)?;
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
            tracing::warn!(
                "'{}': files without the extension of an image format are skipped: {others}",
                printable(root)
            );
        }
        Ok(Self::files(paths, labels, classes))
    }
}

/// The images in a directory and those below it, and the number of other files, which are told apart by their extensions. In
/// torchvision's order: directories by path, the files of each by name. Links to a directory above them are skipped.
///
/// # Errors
/// [`Error::Read`] for a directory that cannot be listed.
pub fn images_below(root: impl AsRef<Path>) -> Result<(Vec<PathBuf>, usize), Error> {
    let (mut directories, mut open) = (vec![], vec![(root.as_ref().to_owned(), vec![])]);
    while let Some((directory, mut above)) = open.pop() {
        // A link may lead to a directory above it.
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

/// Whether a file is named as an image.
pub(crate) fn is_image(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    // A broken link counts as an image that cannot be read.
    EXTENSIONS.contains(&extension.as_str())
}
