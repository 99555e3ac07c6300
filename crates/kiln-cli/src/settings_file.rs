//! Settings files, and how settings are combined: defaults of the recipe, overridden by a file, overridden by the command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::printable;
use kiln_runs::CONFIG;
use toml::{Table, Value};

use crate::pipelines::{Classify, Kind, NextToken, Pipeline, Segment, SettingsOf, moved, parse, settings_beside};
use crate::usage::Usage;
use crate::values::absolute;

/// All pipelines.
const KINDS: [Kind; 3] = [Classify::KIND, Segment::KIND, NextToken::KIND];

/// The setting that models of the Llama family alone have.
const OF_LLAMA: &str = "kv_heads";

/// Settings that hold a path.
const PATHS: [&[&str]; 9] = [
    &["run", "data"],
    &["run", "init"],
    &["run", "from"],
    &["run", "store"],
    &["text", "tokenizer", "bpe"],
    &["text", "tokenizer", "folder"],
    &["text", "validation"],
    &["compression", "lora", "from"],
    &["compression", "teacher", "checkpoint"],
];

/// A settings file: its tables.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SettingsFile {
    path: PathBuf,
    pub(crate) tables: Table,
}

impl SettingsFile {
    /// Reads a settings file. Its paths become absolute, as on the command line.
    ///
    /// # Errors
    /// The error of a file that cannot be read, and [`Usage`] for one that is not TOML.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read config '{}'", printable(&path)))?;
        let mut tables: Table = text.parse().map_err(|e: toml::de::Error| {
            Usage(format!("config '{}' is not TOML: {}", printable(&path), e.message()))
        })?;
        moved(&mut tables);
        for keys in PATHS {
            let value = keys[1..].iter().fold(tables.get_mut(keys[0]), |value, key| value?.get_mut(*key));
            if let Some(Value::String(path)) = value {
                *path = absolute(Path::new(path.as_str())).map_err(Usage)?;
            }
        }
        Ok(Self { path: path.to_owned(), tables })
    }

    /// Reads the settings file of a run that goes on. Runs of programs without the setting `exact` added gradients in any order.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub(crate) fn of_run(path: &Path) -> Result<Self> {
        let mut file = Self::read(path)?;
        if let Some(Value::Table(run)) = file.tables.get_mut("run") {
            run.entry("exact").or_insert_with(|| Value::String("never".into()));
        }
        Ok(file)
    }

    /// Reads `given`, or else the settings file beside or above a checkpoint or a file of weights.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and the error of a checkpoint without one.
    pub(crate) fn of_checkpoint(checkpoint: &Path, given: Option<&PathBuf>) -> Result<Self> {
        let shown = printable(&checkpoint);
        anyhow::ensure!(checkpoint.exists(), "cannot load '{shown}': no such file or directory");
        let beside = || settings_beside(checkpoint);
        let file = given.cloned().or_else(beside);
        Self::read(&file.with_context(|| format!("no {CONFIG} beside or above '{shown}', expected one, or --config"))?)
    }

    /// Removes the folder of the adapters that the run began with.
    pub(crate) fn remove_adapters(&mut self) {
        let lora = self.tables.get_mut("compression").and_then(|compression| compression.get_mut("lora"));
        if let Some(lora) = lora.and_then(Value::as_table_mut) {
            lora.remove("from");
        }
    }

    /// Its name in messages.
    pub(crate) fn origin(&self) -> String {
        format!("config '{}'", printable(&self.path))
    }

    /// A setting.
    pub(crate) fn get(&self, table: &str, key: &str) -> Option<&Value> {
        self.tables.get(table)?.get(key)
    }

    /// A setting that is a number.
    pub(crate) fn number(&self, table: &str, key: &str) -> Option<usize> {
        usize::try_from(self.get(table, key)?.as_integer()?).ok()
    }

    /// A setting that is text.
    pub(crate) fn text(&self, table: &str, key: &str) -> Option<&str> {
        self.get(table, key)?.as_str()
    }

    /// Removes settings of a table.
    pub(crate) fn remove(&mut self, table: &str, keys: &[&str]) {
        if let Some(Value::Table(table)) = self.tables.get_mut(table) {
            keys.iter().for_each(|key| drop(table.remove(*key)));
        }
    }

    /// Fails for the settings of a pipeline other than `kind`. Settings without a pipeline's table pass.
    ///
    /// # Errors
    /// [`Usage`] with the pipeline that the settings belong to.
    pub(crate) fn expect(&self, kind: &Kind) -> Result<(), Usage> {
        match KINDS.iter().find(|kind| kind.has(&self.tables)) {
            Some(found) if found != kind => Err(Usage(format!(
                "{} is of {}, expected {}; `train {command}` and `eval {command}` take it",
                self.origin(),
                found.model,
                kind.model,
                command = found.command,
            ))),
            _ => Ok(()),
        }
    }

    /// The complete settings of a run.
    ///
    /// # Errors
    /// Those of [`expect`](Self::expect) and [`parse`].
    pub(crate) fn settings<P: Pipeline>(&self) -> Result<SettingsOf<P>> {
        self.expect(&P::KIND)?;
        Ok(parse::<P>(self.tables.clone(), &self.origin())?)
    }
}

/// `defaults`, overridden by `file`, overridden by options of the command line as tables. A continued run has no defaults: all its
/// settings are in its file.
///
/// # Errors
/// [`Usage`] with the origin of the setting that is not accepted.
pub(crate) fn resolve<P: Pipeline>(
    defaults: Option<&SettingsOf<P>>,
    file: Option<&SettingsFile>,
    options: Table,
) -> Result<SettingsOf<P>> {
    let mut all = defaults.map(Table::try_from).transpose()?.unwrap_or_default();
    if let Some(file) = file {
        merge(&mut all, file.tables.clone());
        let _ = parse::<P>(all.clone(), &file.origin())?; // an error in the file is not the command line's fault
    }
    merge(&mut all, options);
    Ok(parse::<P>(all, "command line")?)
}

fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            // Optimizers have different keys, and so have decoders: the new one replaces the old one as a whole.
            (Some(Value::Table(base)), Value::Table(over)) if key != "optimizer" && !is_other_decoder(base, &over) => {
                merge(base, over);
            }
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

/// Whether one of two tables is the model of the Llama family, and the other is not.
fn is_other_decoder(base: &Table, over: &Table) -> bool {
    base.contains_key(OF_LLAMA) != over.contains_key(OF_LLAMA)
}

#[cfg(test)]
mod tests {
    use kiln_data::BadSamples;

    use super::*;
    use crate::pipelines::{classify, next_token, segment};

    fn file(text: &str) -> SettingsFile {
        SettingsFile { path: "run/config.toml".into(), tables: text.parse().unwrap() }
    }

    #[test]
    fn relative_paths_in_a_file_become_absolute() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CONFIG);
        let text =
            "[run]\ndata = 'a/text'\nseed = 3\n[text]\ntokenizer = { bpe = 'a/tokenizer', folder = 'a/model' }\n";
        std::fs::write(&path, text).unwrap();
        let here = std::env::current_dir().unwrap();
        let tables = SettingsFile::read(&path).unwrap().tables;
        let shown = |name: &str| here.join(name).display().to_string();
        assert_eq!(tables["run"]["data"].as_str(), Some(&*shown("a/text")));
        assert_eq!(tables["text"]["tokenizer"]["bpe"].as_str(), Some(&*shown("a/tokenizer")));
        assert_eq!(tables["text"]["tokenizer"]["folder"].as_str(), Some(&*shown("a/model")));
        // Values that are no such path stay unchanged.
        for text in ["[text]\ntokenizer = 'bytes'\n", "run = 7\n", ""] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(SettingsFile::read(&path).unwrap().tables, text.parse::<Table>().unwrap());
        }
    }

    #[test]
    fn every_recipe_is_read_over_the_defaults_of_its_pipeline() {
        let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
        let mut read = 0;
        for entry in std::fs::read_dir(recipes).unwrap() {
            let path = entry.unwrap().path();
            let file = SettingsFile::read(&path).unwrap();
            let name = path.display();
            if Classify::KIND.has(&file.tables) {
                let images = classify::open(None).unwrap().train;
                let defaults = classify::recipe(&images, classify::DEFAULT, None).unwrap();
                let settings = resolve::<Classify>(Some(&defaults), Some(&file), Table::new()).unwrap();
                assert_eq!(Some(settings.data.images.size), file.number("images", "size"), "{name}");
            } else if Segment::KIND.has(&file.tables) {
                let data = segment::open(None, None).unwrap();
                let tiles = segment::tiles(&data, [128, 64, 32], Some(255), BadSamples::FAIL).unwrap();
                let defaults = segment::recipe(&data, &tiles.train, false, BadSamples::FAIL).unwrap();
                let settings = resolve::<Segment>(Some(&defaults), Some(&file), Table::new()).unwrap();
                assert_eq!(Some(settings.data.tiles.size), file.number("tiles", "size"), "{name}");
            } else {
                let settings = resolve::<NextToken>(Some(&next_token::recipe()), Some(&file), Table::new()).unwrap();
                assert_eq!(Some(settings.model.context()), file.number("model", "context"), "{name}");
            }
            read += 1;
        }
        assert!(read >= 4, "{read}");
    }

    #[test]
    fn settings_of_older_runs_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CONFIG);
        let mut settings = next_token::recipe();
        settings.compression = Some(Default::default());
        let text = toml::to_string_pretty(&settings).unwrap();
        let older = text.replace("[compression]", "[compression]\nweights = '/runs/gpt-001'")
            + "\n[run.parallel]\nstages = '2'\nschedule = 'gpipe'\n";
        std::fs::write(&path, older).unwrap();
        let read = SettingsFile::read(&path).unwrap().settings::<NextToken>().unwrap();
        assert_eq!(read.run.init, Some("/runs/gpt-001".into()));
        assert_eq!(read.run.parallel.pipeline_schedule, kiln_parallel::Schedule::GPipe);
    }

    #[test]
    fn the_tables_of_a_file_tell_its_pipeline() {
        for (text, kind) in [
            ("[run]\n[images]\n[model]", Some(Classify::KIND)),
            ("[run]\n[tiles]\n[loss]", Some(Segment::KIND)),
            ("[run]\n[text]", Some(NextToken::KIND)),
            ("[run]\n[model]", None),
        ] {
            assert_eq!(KINDS.into_iter().find(|kind| kind.has(&file(text).tables)), kind);
        }
        let text = file("[images]").expect(&NextToken::KIND).unwrap_err().0;
        assert!(text.contains("an image classifier, expected a decoder of text") && text.contains("`train classify`"));
        assert!(file("[images]").expect(&Classify::KIND).is_ok() && file("").expect(&NextToken::KIND).is_ok());
    }
}
