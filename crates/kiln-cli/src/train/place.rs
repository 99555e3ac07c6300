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

/// The store of a run that names none: for a run with a limit of memory, which a GPU has by itself, and for one that has begun to use it.
pub(super) fn store(run: &RunSettings, directory: &RunDirectory) -> Option<PathBuf> {
    let (store, is_limited) = (directory.store(), run.memory.is_some() || run.device != "flex");
    (is_limited || run.streams() || store.exists()).then_some(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_memory_has_a_limit_has_a_store_to_go_to() {
        let directory = RunDirectory::existing(&PathBuf::from("run"));
        let run = RunSettings::new(1, 8);
        assert_eq!(store(&run, &directory), None);
        let limited = RunSettings { memory: Some("60MiB".parse().unwrap()), ..RunSettings::new(1, 8) };
        let on_gpu = RunSettings { device: "cuda:1".into(), ..RunSettings::new(1, 8) };
        for run in [limited, on_gpu] {
            assert_eq!(store(&run, &directory), Some(directory.store()));
        }
    }
}
