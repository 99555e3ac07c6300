//! Lists the images that a call names: files, and all images below directories.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_data::{images_below, printable};

use crate::usage::Usage;

/// An image to predict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    /// Its path.
    pub(super) path: PathBuf,
    /// Its name in results: its path below the given directory, else the name of the file.
    pub(super) name: PathBuf,
}

/// The images of `given`, in this order. Those of a directory are sorted by name. A missing file is included, as one that cannot be read.
pub(super) fn images(given: &[PathBuf]) -> Result<Vec<Input>> {
    let mut inputs = vec![];
    for path in given {
        if !path.is_dir() {
            let name = path.file_name().map_or_else(|| path.clone(), PathBuf::from);
            inputs.push(Input { path: path.clone(), name });
            continue;
        }
        let (images, others) = images_below(path)?;
        let shown = printable(&path);
        if images.is_empty() {
            bail!(Usage(format!(
                "there is no image in '{shown}', expected files named as images (.jpg, .png, .tif ...)"
            )));
        }
        if others > 0 {
            tracing::warn!("'{shown}': files without the extension of an image format are skipped: {others}");
        }
        inputs.extend(images.into_iter().map(|image| {
            let name = image.strip_prefix(path).map_or_else(|_| image.clone(), Path::to_owned);
            Input { path: image, name }
        }));
    }
    Ok(inputs)
}

/// The output path of each image's picture: its name in `folder`, as PNG. No input image is replaced, and no file is written twice.
pub(super) fn pictures(inputs: &[Input], folder: &Path) -> Result<Vec<PathBuf>> {
    let read: std::collections::BTreeSet<PathBuf> =
        inputs.iter().filter_map(|input| input.path.canonicalize().ok()).collect();
    let mut paths = std::collections::BTreeMap::new();
    let mut all = vec![];
    for Input { path, name } in inputs {
        let picture = folder.join(name).with_extension("png");
        let shown = printable(&picture);
        if picture.canonicalize().is_ok_and(|picture| read.contains(&picture)) {
            bail!(Usage(format!("'{shown}' is an image that is read, expected another --out")));
        }
        if let Some(other) = paths.insert(picture.clone(), path) {
            bail!(Usage(format!(
                "'{}' and '{}' would both be written to '{shown}', expected images of different names",
                printable(&other),
                printable(&path)
            )));
        }
        all.push(picture);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Input, images, pictures};

    #[test]
    fn directories_are_searched_and_files_are_taken_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("all/below")).unwrap();
        fs::create_dir_all(at("empty")).unwrap();
        for name in ["all/b.JPG", "all/a.png", "all/notes.txt", "all/below/c.tif"] {
            fs::write(at(name), "").unwrap();
        }
        let found = images(&[at("all"), at("photo")]).unwrap();
        let names: Vec<PathBuf> = found.iter().map(|input| input.name.clone()).collect();
        assert_eq!(names, ["a.png", "b.JPG", "below/c.tif", "photo"].map(PathBuf::from));
        assert_eq!(found[2].path, at("all/below/c.tif"));
        assert!(images(&[at("empty")]).unwrap_err().to_string().contains("no image"));
    }

    #[test]
    fn no_picture_replaces_an_image_or_another_picture() {
        let folder = tempfile::tempdir().unwrap();
        let input =
            |name: &str| Input { path: folder.path().join(name), name: Path::new(name).file_name().unwrap().into() };
        let out = folder.path().join("out");
        let written = pictures(&[input("a.tif"), input("b.png")], &out).unwrap();
        assert_eq!(written, [out.join("a.png"), out.join("b.png")]);
        let twice = pictures(&[input("x/a.tif"), input("y/a.jpg")], &out).unwrap_err().to_string();
        assert!(twice.contains("x/a.tif") && twice.contains("y/a.jpg") && twice.contains("out/a.png"), "{twice}");
        fs::write(folder.path().join("b.png"), "").unwrap();
        let replaced = pictures(&[input("b.png")], folder.path()).unwrap_err().to_string();
        assert!(replaced.contains("b.png' is an image that is read"), "{replaced}");
    }
}
