//! Where a run is: its directory, and its store.

use std::path::PathBuf;

use anyhow::{Result, bail};
use kiln_data::printable;

use crate::cli::CallArgs;
use crate::pipelines::{RunSettings, is_untrained};
use crate::run_directory::RunDirectory;

/// The directory of a run: that of the run to resume, or a new one.
pub(super) fn directory(name: &str, call: &CallArgs) -> Result<RunDirectory> {
    match &call.resume {
        Some(path) if is_untrained(path)? => {
            bail!("'{}' holds a model that was quantised as it was: there is nothing to go on with", printable(&path))
        }
        Some(path) => Ok(RunDirectory::existing(path)),
        None => RunDirectory::reserve(call.out.as_deref(), name),
    }
}

/// The store of a run that names none: for a run with a budget, and for one that has begun to use it.
pub(super) fn store(run: &RunSettings, directory: &RunDirectory) -> Option<PathBuf> {
    let store = directory.store();
    (run.memory.is_some() || run.streams() || store.exists()).then_some(store)
}
