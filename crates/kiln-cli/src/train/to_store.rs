//! The last resort of a run whose steps do not fit into memory any more: its blocks are streamed from a store.

use std::path::{Path, PathBuf};

use anyhow::{Error, Result};
use clap::{FromArgMatches, Subcommand};
use kiln_data::printable;

use crate::cli::{CallArgs, Train};

/// A run that ended for lack of memory, and that can go on with its parameters in a store.
#[derive(Debug, thiserror::Error)]
#[error("its blocks can be streamed from a store: --resume {} --checkpointing stream", printable(.directory))]
pub(super) struct ToStore {
    pipeline: &'static str,
    directory: PathBuf,
    /// Options of the call that go on to hold.
    options: Vec<String>,
}

impl ToStore {
    pub(super) fn new(pipeline: &'static str, directory: &Path, device: &str, call: &CallArgs) -> Self {
        let mut options = vec!["--device".to_owned(), device.to_owned()];
        options.extend(call.json.then(|| "--json".into()));
        let numbers = [
            ("--wait-for-memory", call.wait_for_memory.map(|seconds| seconds.to_string())),
            ("--inject-oom", call.inject_oom.map(|chance| chance.to_string())),
        ];
        options.extend(numbers.into_iter().flat_map(|(name, value)| value.map(|value| [name.into(), value])).flatten());
        Self { pipeline, directory: directory.to_owned(), options }
    }

    /// The command that goes on, if this is why a run has ended.
    pub(super) fn command(error: &Error) -> Option<Result<Train>> {
        let Self { pipeline, directory, options } = error.downcast_ref()?;
        let directory = directory.display().to_string();
        let words = ["train", pipeline, "--resume", &directory, "--checkpointing", "stream"];
        let words = words.into_iter().map(str::to_owned).chain(options.iter().cloned());
        let matches = Train::augment_subcommands(clap::Command::new("train")).try_get_matches_from(words);
        Some(matches.and_then(|matches| Train::from_arg_matches(&matches)).map_err(Error::from))
    }
}
