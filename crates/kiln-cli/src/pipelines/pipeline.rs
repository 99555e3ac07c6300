//! What the reference pipelines have in common.

use std::fmt::Debug;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_checkpointing::Tensors;
use kiln_models::SafetensorsModel;
use kiln_training::{Goal, Pass, Task};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Table;

use super::settings::Settings;
use crate::usage::Usage;

/// A reference pipeline, which is the task of its runs. Several threads can work on it, as stages do.
pub trait Pipeline: Sized + Task<Model: SafetensorsModel + Sync, Batch: Sync> + Sync + 'static {
    /// The tables of settings that no other pipeline has.
    type Data: Clone + Debug + Serialize + DeserializeOwned;
    /// The configuration of the model, in the settings.
    type Config: Clone + Debug + Serialize + DeserializeOwned;

    /// Names of the pipeline and of its settings.
    const KIND: Kind;
    /// The metric that runs are judged by.
    const METRIC: &'static str;
    /// Which values of the metric are better.
    const GOAL: Goal;
}

/// A task whose model is a chain of blocks between an input and a loss.
pub trait Chained: Task + 'static {
    /// A block.
    type Block: Module + 'static;
    /// The input and the output of a block.
    type X: Tensors;
    /// The tensors that the loss compares with.
    type Target: Tensors;

    /// Copies a batch to `device`. Returns the input of the first block, and the targets.
    fn begin(&self, model: &Self::Model, batch: &Self::Batch, device: &Device) -> (Self::X, Self::Target);

    /// The blocks.
    fn blocks(&self, model: &Self::Model) -> Vec<Self::Block>;

    /// Runs one block.
    fn forward(block: &Self::Block, x: Self::X) -> Self::X;

    /// The mean loss from the output of the last block.
    fn end(&self, model: &Self::Model, x: Self::X, target: Self::Target) -> Tensor<1>;

    /// The loss of a batch in a pass, which runs the blocks.
    fn chain_loss(&self, pass: &Pass<'_, Self::Model>, batch: &Self::Batch) -> Tensor<1> {
        let (x, target) = self.begin(pass.model(), batch, pass.device());
        let x = pass.chain(&self.blocks(pass.model()), x, Self::forward);
        self.end(pass.model(), x, pass.to_device(target))
    }
}

/// Settings of the runs of a pipeline.
pub type SettingsOf<P> = Settings<<P as Pipeline>::Data, <P as Pipeline>::Config>;

/// Names of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The tables of settings that no other pipeline has. The first one tells the pipeline.
    pub tables: &'static [&'static str],
    /// Whether its models can be made smaller, with settings in a table `compression`.
    pub compresses: bool,
    /// The word of its commands, as in `train classify`.
    pub command: &'static str,
    /// The kind of its model, for messages.
    pub model: &'static str,
}

/// The tables of settings of every pipeline.
const TABLES: [&str; 4] = ["run", "model", "optimizer", "schedule"];

impl Kind {
    /// Whether `settings` have the table that tells this pipeline.
    pub fn has(&self, settings: &Table) -> bool {
        self.tables.first().is_some_and(|table| settings.contains_key(*table))
    }

    fn accepts(&self, table: &str) -> bool {
        TABLES.contains(&table) || self.tables.contains(&table) || (self.compresses && table == "compression")
    }
}

/// Reads the settings of a pipeline from their tables.
///
/// # Errors
/// [`Usage`] with `origin` and the table, for a table or a key that does not exist, and for a value that is not accepted.
pub fn parse<P: Pipeline>(tables: Table, origin: &str) -> Result<SettingsOf<P>, Usage> {
    if let Some(unknown) = tables.keys().find(|table| !P::KIND.accepts(table)) {
        let accepted = TABLES.iter().chain(P::KIND.tables).chain(P::KIND.compresses.then_some(&"compression"));
        let accepted = accepted.map(|table| format!("`{table}`")).collect::<Vec<_>>().join(", ");
        return Err(Usage(format!("{origin}: unknown field `{unknown}`, expected one of {accepted}")));
    }
    // Errors in flattened tables do not name these.
    let own: Table = tables.clone().into_iter().filter(|(table, _)| P::KIND.tables.contains(&table.as_str())).collect();
    let _: P::Data = own.try_into().map_err(|error| located(&error, origin))?;
    tables.try_into().map_err(|error| located(&error, origin))
}

/// Moves settings of older runs to where they are today: initial weights were a part of the compression.
pub fn moved(tables: &mut Table) {
    let older = tables.get_mut("compression").and_then(|table| table.as_table_mut()?.remove("weights"));
    let Some(weights) = older else { return };
    if let toml::Value::Table(run) = tables.entry("run").or_insert_with(|| Table::new().into()) {
        run.entry("init").or_insert(weights);
    }
}

/// The message of an error, with the table that it is in.
fn located(error: &toml::de::Error, origin: &str) -> Usage {
    let text = error.to_string();
    let key = text.lines().find_map(|line| line.trim().strip_prefix("in `"));
    let place = key.map_or(String::new(), |key| format!(" in [{}]", key.trim_end_matches('`')));
    Usage(format!("{origin}{place}: {}", error.message()))
}
