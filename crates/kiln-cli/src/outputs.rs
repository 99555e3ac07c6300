//! Files that are written for inputs, under the names of these.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_data::printable;

use crate::usage::Usage;

/// An image to predict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its name in results: its path below the given directory, else the name of the file.
    pub(crate) name: PathBuf,
}

impl Input {
    /// An image that is given by its path.
    pub(crate) fn file(path: &Path) -> Self {
        Self { path: path.to_owned(), name: path.file_name().map_or_else(|| path.to_owned(), PathBuf::from) }
    }
}

/// The output path of each image: its name in `folder`, with the extension. Neither an input nor one of the files that are `also_read` is
/// replaced, and no file is written twice. `option` names the folder.
pub(crate) fn outputs(
    inputs: &[Input],
    also_read: &[PathBuf],
    (option, folder): (&str, &Path),
    extension: &str,
) -> Result<Vec<PathBuf>> {
    let read = inputs.iter().map(|input| &input.path).chain(also_read);
    let read: BTreeSet<PathBuf> = read.filter_map(|path| path.canonicalize().ok()).collect();
    let mut writers = BTreeMap::new();
    let mut paths = vec![];
    for Input { path, name } in inputs {
        let output = folder.join(name).with_extension(extension);
        let shown = printable(&output);
        if output.canonicalize().is_ok_and(|output| read.contains(&output)) {
            let what = if also_read.is_empty() { "an image" } else { "an image or a mask" };
            bail!(Usage(format!("'{shown}' is {what} that is read, expected another {option}")));
        }
        if let Some(other) = writers.insert(output.clone(), path) {
            bail!(Usage(format!(
                "'{}' and '{}' would both be written to '{shown}', expected images of different names",
                printable(&other),
                printable(&path)
            )));
        }
        paths.push(output);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_output_replaces_an_input_or_another_output() {
        let folder = tempfile::tempdir().unwrap();
        let input = |name: &str| Input::file(&folder.path().join(name));
        let out = folder.path().join("out");
        let of = |inputs: &[Input], folder: &Path| outputs(inputs, &[], ("--out", folder), "png");
        let written = of(&[input("a.tif"), input("b.png")], &out).unwrap();
        assert_eq!(written, [out.join("a.png"), out.join("b.png")]);
        let twice = of(&[input("x/a.tif"), input("y/a.jpg")], &out).unwrap_err().to_string();
        assert!(twice.contains("x/a.tif") && twice.contains("y/a.jpg") && twice.contains("out/a.png"), "{twice}");
        std::fs::write(folder.path().join("b.png"), "").unwrap();
        let replaced = of(&[input("b.png")], folder.path()).unwrap_err().to_string();
        assert!(replaced.contains("b.png' is an image that is read, expected another --out"), "{replaced}");
        let masks = [folder.path().join("b.png")];
        let replaced =
            outputs(&[input("c/b.tif")], &masks, ("--predict", folder.path()), "png").unwrap_err().to_string();
        assert!(replaced.contains("an image or a mask that is read, expected another --predict"), "{replaced}");
    }
}
