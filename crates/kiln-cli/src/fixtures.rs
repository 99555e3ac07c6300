//! Finds the small data sets that come with the project.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::usage::Usage;
use kiln_data::printable;

/// The fixtures: next to the program in a bundle, in the workspace otherwise.
///
/// # Errors
/// When there is no such directory.
pub fn directory() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let found = root().map(|root| root.join("fixtures"));
    found.with_context(|| format!("no directory 'fixtures' beside '{}'; give --data", printable(&program)))
}

/// A small data set of the project, for a run whose settings name none. `instead` names a `--data` for an installed program.
///
/// # Errors
/// [`Usage`] when this program was installed without the fixtures.
pub fn data_set(path: &str, instead: &str) -> Result<PathBuf> {
    found(root(), path, instead)
}

fn found(root: Option<PathBuf>, path: &str, instead: &str) -> Result<PathBuf> {
    let without =
        || Usage(format!("this program was installed without data of its own; give --data, such as {instead}"));
    Ok(root.ok_or_else(without)?.join("fixtures").join(path))
}

/// The directory that holds `fixtures/` and `benches/`: the bundle, or the workspace.
pub fn root() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    bundle().or_else(|| source.join("fixtures").is_dir().then_some(source))
}

/// The directory of the bundle that this program lies in, if it does.
pub fn bundle() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.parent().filter(|folder| folder.join("fixtures").is_dir()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_says_which_data_it_takes() {
        let error = found(None, "fashion-mnist", "data/fashion-mnist after `kiln fetch fashion-mnist`").unwrap_err();
        assert!(error.is::<Usage>());
        let text = "this program was installed without data of its own; give --data, such as data/fashion-mnist after \
                    `kiln fetch fashion-mnist`";
        assert_eq!(error.to_string(), text);
        assert_eq!(found(Some("/bundle".into()), "bpe", "").unwrap(), Path::new("/bundle/fixtures/bpe"));
    }
}
