//! A directory that appears only when all of its files are written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use kiln_data::printable;
use serde::Serialize;
use tempfile::TempDir;

use crate::usage::Usage;

/// The weights in the folder.
pub(super) const WEIGHTS: &str = "model.safetensors";

/// An unfinished directory beside its final place.
pub(super) struct Folder {
    making: TempDir,
    path: PathBuf,
}

impl Folder {
    /// A directory that will be at `path`.
    ///
    /// # Errors
    /// [`Usage`] if `path` exists and is not an empty directory.
    pub(super) fn begin(path: &Path) -> Result<Self> {
        let occupied = path.exists() && fs::read_dir(path).map_or(true, |mut entries| entries.next().is_some());
        if occupied {
            let text = format!("'{}' exists and is not an empty directory, expected a new one", printable(&path));
            bail!(Usage(text));
        }
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let begun = fs::create_dir_all(above)
            .and_then(|()| tempfile::Builder::new().prefix(".export-").suffix(".partial").tempdir_in(above));
        let making = begun.with_context(|| format!("cannot make a directory in '{}'", printable(&above)))?;
        Ok(Self { making, path: path.to_owned() })
    }

    /// The directory while it is made.
    pub(super) fn directory(&self) -> &Path {
        self.making.path()
    }

    /// The path to write the file `name` to.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.making.path().join(name)
    }

    pub(super) fn text(&self, name: &str, text: &str) -> Result<()> {
        fs::write(self.file(name), text)
            .with_context(|| format!("cannot write '{name}' of '{}'", printable(&self.path)))
    }

    pub(super) fn json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.text(name, &(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Copies a file under its own name.
    pub(super) fn copy(&self, file: &Path) -> Result<()> {
        let name = file.file_name().ok_or_else(|| anyhow!("'{}' is no file", printable(&file)))?;
        let copied = fs::copy(file, self.making.path().join(name));
        copied.with_context(|| format!("cannot copy '{}'", printable(&file))).map(drop)
    }

    /// Moves the directory to its final place.
    pub(super) fn finish(self) -> Result<PathBuf> {
        let Self { making, path } = self;
        let place = || -> std::io::Result<()> {
            for entry in fs::read_dir(making.path())? {
                fs::File::open(entry?.path())?.sync_all()?;
            }
            readable(making.path())?;
            if path.exists() {
                fs::remove_dir(&path)?;
            }
            fs::rename(making.path(), &path)
        };
        place().with_context(|| format!("cannot write '{}'", printable(&path)))?;
        // The directory has been renamed.
        let _ = making.keep();
        Ok(path)
    }
}

/// Temporary directories are private to their user; results are not.
#[cfg(unix)]
fn readable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn readable(_: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Folder;

    #[test]
    fn a_directory_appears_when_it_is_whole() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("out/model");
        let folder = Folder::begin(&path).unwrap();
        folder.text("README.md", "text").unwrap();
        assert!(!path.exists());
        drop(folder);
        assert_eq!(std::fs::read_dir(above.path().join("out")).unwrap().count(), 0, "something was left");
        let folder = Folder::begin(&path).unwrap();
        folder.json("labels.json", &["a"]).unwrap();
        folder.finish().unwrap();
        assert_eq!(std::fs::read_to_string(path.join("labels.json")).unwrap(), "[\n  \"a\"\n]\n");
        let refused = Folder::begin(&path).err().unwrap().to_string();
        assert!(refused.contains("expected a new one"), "{refused}");
    }
}
