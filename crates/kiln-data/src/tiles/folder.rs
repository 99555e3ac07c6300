//! A directory of images and masks of the same names.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::files::{TrainTest, check_names, list};
use crate::images::is_image;

/// The extensions of masks, in the order in which they are looked for.
const OF_MASKS: [&str; 3] = ["tif", "tiff", "png"];
/// One in this many images is held out of a directory that has no test part.
const HELD_OUT: usize = 5;

/// Images with their masks, and the names of the classes if a file says them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskedImages {
    /// The file of each image and that of its mask, sorted by name.
    pub pairs: Vec<(PathBuf, PathBuf)>,
    /// The names of the classes 0, 1 and so on.
    pub classes: Option<Vec<String>>,
}

/// Lists the images of `root` and their masks, in one of these layouts:
///
/// - `train/images/`, `train/masks/` and `test/images/`, `test/masks/` (or `val/`)
/// - `images/` and `masks/`: every fifth image is held out, the same ones every time
///
/// A mask has the name of its image with the extension tif, tiff or png. A file `classes.txt` in `root` has the name of a class on each
/// line. Only that file is opened: [`TileSet`](crate::TileSet) reports damaged images and masks, and masks that are missing.
///
/// # Errors
/// [`Error::Read`] for a directory that cannot be listed, [`Error::NoDataSet`] for another layout, no image, or a single image that would
/// have to be divided, [`Error::ClassName`] for a class whose name has control characters.
pub fn open_masked_images(root: impl AsRef<Path>) -> Result<TrainTest<MaskedImages>, Error> {
    let root = root.as_ref();
    let classes = classes(root)?;
    let masked = |pairs| MaskedImages { pairs, classes: classes.clone() };
    if root.join("images").is_dir() {
        let (mut test, mut train) = (vec![], vec![]);
        for (index, pair) in pairs(root)?.into_iter().enumerate() {
            if index % HELD_OUT == HELD_OUT / 2 { test.push(pair) } else { train.push(pair) }
        }
        // The only one of two images is held out.
        if test.is_empty() && train.len() > 1 {
            test.extend(train.pop());
        }
        if test.is_empty() {
            let reason = "one image cannot be divided, expected at least 2 (or train/ and test/)".into();
            return Err(Error::NoDataSet { path: root.join("images"), reason });
        }
        return Ok(TrainTest { train: masked(train), test: masked(test) });
    }
    let test = ["test", "val"].map(|name| root.join(name)).into_iter().find(|path| path.is_dir());
    let (train, Some(test)) = (root.join("train"), test) else {
        let reason = "expected images/ and masks/, or train/ and test/ of those";
        return Err(Error::no_data_set(root, reason));
    };
    Ok(TrainTest { train: masked(pairs(&train)?), test: masked(pairs(&test)?) })
}

/// The images below `root`, each with the mask of its name, or the place where it should be.
fn pairs(root: &Path) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
    let (images, masks) = (root.join("images"), root.join("masks"));
    let found: Vec<PathBuf> = list(&images)?.into_iter().filter(|path| is_image(path)).collect();
    if found.is_empty() {
        return Err(Error::NoDataSet {
            path: images,
            reason: "it has no image, expected .tif, .png or .jpg files".into(),
        });
    }
    let paired = |image: PathBuf| {
        let of = |extension: &&str| masks.join(image.file_stem().unwrap_or_default()).with_added_extension(extension);
        let mask = OF_MASKS.iter().map(of).find(|path| path.exists()).unwrap_or_else(|| of(&OF_MASKS[0]));
        (image, mask)
    };
    Ok(found.into_iter().map(paired).collect())
}

fn classes(root: &Path) -> Result<Option<Vec<String>>, Error> {
    let path = root.join("classes.txt");
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).map_err(|e| Error::read(&path, e))?;
    let names: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    check_names(&names, &path)?;
    match names.is_empty() {
        true => Err(Error::format(&path, "no class, expected the name of one on each line")),
        false => Ok(Some(names)),
    }
}
