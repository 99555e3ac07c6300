//! The small data sets that come with the project: where they are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The fixtures: next to the program in a bundle, in the workspace otherwise.
///
/// # Errors
/// When there is no such directory.
pub fn directory() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let found = root().map(|root| root.join("fixtures"));
    found.with_context(|| format!("no directory 'fixtures' beside '{}'; give --data", program.display()))
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
