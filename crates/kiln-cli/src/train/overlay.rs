//! Combines settings: defaults of the recipe, overridden by a TOML file, overridden by the command line.

use std::path::{Path, PathBuf};

use crate::usage::Usage;
use anyhow::{Context, Result};
use kiln_data::printable;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::cli::{ParallelArgs, RunArgs};

impl RunArgs {
    /// The options of the command line, in the format of the settings file.
    ///
    /// # Errors
    /// [`Usage`] for a path that is not UTF-8.
    pub(crate) fn overlay(&self) -> Result<Overlay> {
        let (step, mut overlay) = (&self.step, Overlay::default());
        overlay.set("run", "data", step.data.as_deref().map(absolute).transpose()?);
        overlay.set("run", "device", step.device.clone());
        overlay.set("run", "seed", step.seed.map(i64::from));
        overlay.set("run", "epochs", self.epochs.map(i64::from));
        overlay.set("run", "max_steps", self.max_steps.map(i64::from));
        overlay.set("run", "batch_size", step.batch_size.map(i64::from));
        overlay.set("run", "micro_batch", step.micro_batch.map(i64::from));
        overlay.set("run", "precision", step.precision.clone());
        overlay.set("run", "checkpointing", step.checkpointing.clone());
        overlay.set("run", "memory", step.memory.clone());
        overlay.set("run", "clip_norm", step.clip_norm);
        overlay.set("run", "workers", step.workers.map(i64::from));
        overlay.set("run", "loader_memory", step.loader_memory.clone());
        overlay.set("run", "bad_samples", step.bad_samples.clone());
        overlay.set("run", "patience", self.patience.map(i64::from));
        overlay.set("run", "init", self.begin.init.as_deref().map(absolute).transpose()?);
        overlay.set("run", "from", self.begin.from.as_deref().map(absolute).transpose()?);
        let freeze = &self.begin.freeze;
        overlay.set("run", "freeze", (!freeze.is_empty()).then(|| freeze.clone()));
        overlay.set("run", "evaluate_every", self.evaluate_every.map(i64::from));
        overlay.set("run", "save_every", self.save_every.map(i64::from));
        overlay.set("run", "keep", self.keep.map(i64::from));
        overlay.set("schedule", "peak", self.learning_rate);
        Ok(overlay)
    }
}

impl ParallelArgs {
    /// Overrides the settings of a run by the options.
    pub(crate) fn lay_over(&self, overlay: &mut Overlay) {
        let Self { stages, replicas, shard_optimizer } = self;
        overlay.set_within("run", "parallel", "replicas", replicas.clone());
        overlay.set_within("run", "parallel", "shard_optimizer", shard_optimizer.then_some(true));
        overlay.set_within("run", "parallel", "stages", stages.stages.clone());
        overlay.set_within("run", "parallel", "schedule", stages.schedule.clone());
    }
}

/// Some settings, as tables of values.
#[derive(Default)]
pub(crate) struct Overlay(Table);

impl Overlay {
    pub(crate) fn set(&mut self, table: &str, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            let table = self.0.entry(table).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(table) = table {
                table.insert(key.to_owned(), value.into());
            }
        }
    }

    /// Sets a value in a table of a table.
    pub(crate) fn set_within(&mut self, table: &str, inner: &str, key: &str, value: Option<impl Into<Value>>) {
        let Some(value) = value else { return };
        let mut at = &mut self.0;
        for name in [table, inner] {
            let Value::Table(next) = at.entry(name).or_insert_with(|| Value::Table(Table::new())) else { return };
            at = next;
        }
        at.insert(key.to_owned(), value.into());
    }
}

/// Reads a settings file. Its paths become absolute, as on the command line.
pub(crate) fn read(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read config '{}'", printable(&path)))?;
    let mut table: Table = text
        .parse()
        .map_err(|e: toml::de::Error| Usage(format!("config '{}' is not TOML: {}", printable(&path), e.message())))?;
    for keys in [
        &["run", "data"][..],
        &["run", "init"],
        &["run", "from"],
        &["text", "tokenizer", "bpe"],
        &["compression", "weights"],
        &["compression", "teacher", "checkpoint"],
    ] {
        let value = keys[1..].iter().fold(table.get_mut(keys[0]), |value, key| value?.get_mut(*key));
        if let Some(Value::String(path)) = value {
            *path = absolute(Path::new(path.as_str()))?;
        }
    }
    Ok(table)
}

/// Makes a path absolute, because a run is resumed and evaluated from any directory.
///
/// # Errors
/// [`Usage`] for a path that is not UTF-8: settings files are UTF-8.
pub(crate) fn absolute(path: &Path) -> Result<String> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let refuse = |path| format!("'{}' is not UTF-8, expected a path that a settings file can hold", printable(&path));
    Ok(path.into_os_string().into_string().map_err(|path| Usage(refuse(path)))?)
}

/// The data set that a settings file names.
pub(crate) fn data_of(file: Option<&(&Path, Table)>) -> Option<PathBuf> {
    file?.1.get("run")?.get("data")?.as_str().map(PathBuf::from)
}

/// `defaults`, overridden by `file`, overridden by the command line. A continued run has no defaults: all its settings are in its file.
pub(crate) fn resolve<S: Serialize + DeserializeOwned>(
    defaults: Option<&S>,
    file: Option<(&Path, Table)>,
    arguments: Overlay,
) -> Result<S> {
    let mut all = defaults.map(Table::try_from).transpose()?.unwrap_or_default();
    let origin = file.as_ref().map(|(path, _)| format!("config '{}'", printable(&path)));
    merge(&mut all, file.map(|(_, table)| table).unwrap_or_default());
    if let Some(origin) = origin {
        let _: S = parse(all.clone(), &origin)?; // an error in the file is not the command line's fault
    }
    merge(&mut all, arguments.0);
    parse(all, "command line")
}

fn parse<S: DeserializeOwned>(all: Table, origin: &str) -> Result<S> {
    all.try_into().map_err(|e: toml::de::Error| {
        let text = e.to_string();
        let key = text.lines().find_map(|line| line.trim().strip_prefix("in `"));
        let place = key.map_or(String::new(), |key| format!(" in [{}]", key.trim_end_matches('`')));
        Usage(format!("{origin}{place}: {}", e.message())).into()
    })
}

fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            // Optimizers have different keys: the new one replaces the old one as a whole.
            (Some(Value::Table(base)), Value::Table(over)) if key != "optimizer" => merge(base, over),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_in_a_file_become_absolute() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, "[run]\ndata = 'a/text'\nseed = 3\n[text]\ntokenizer = { bpe = 'a/tokenizer' }\n")
            .unwrap();
        let here = std::env::current_dir().unwrap();
        let table = read(&path).unwrap();
        let shown = |name: &str| here.join(name).display().to_string();
        assert_eq!(table["run"]["data"].as_str(), Some(&*shown("a/text")));
        assert_eq!(table["text"]["tokenizer"]["bpe"].as_str(), Some(&*shown("a/tokenizer")));
        // Values that are no such path stay unchanged.
        for text in ["[text]\ntokenizer = 'bytes'\n", "run = 7\n", ""] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap(), text.parse::<Table>().unwrap());
        }
    }
}
