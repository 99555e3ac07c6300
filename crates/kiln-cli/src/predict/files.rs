//! Lists the images that a call names: files, and all images below directories.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_data::{images_below, printable};

use crate::outputs::Input;
use crate::usage::Usage;

/// The images of `given`, in this order. Those of a directory are sorted by name. A missing file is included, as one that cannot be read.
pub(super) fn images(given: &[PathBuf]) -> Result<Vec<Input>> {
    let mut inputs = vec![];
    for path in given {
        if !path.is_dir() {
            inputs.push(Input::file(path));
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::images;

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
}
