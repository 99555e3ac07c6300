//! The decoder of a run that streams: its blocks stay in the run's store.

use std::path::Path;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Device;
use kiln_checkpointing::{FileStore, Streamed};
use kiln_data::printable;
use kiln_models::Decoder;
use kiln_training::Checkpoints;

use crate::cli::TrainedArgs;
use crate::pipelines::GptSettings;
use crate::pipelines::next_token::initial_words;
use crate::run_directory::RunDirectory;

/// The parameters that are in the store of a run directory, and the model without them. `None` for a run without one, and where the
/// weights are not those of the store: the best ones, those of a later checkpoint, and those of a model with attachments or with frozen parameters.
pub(super) fn stored(
    settings: &GptSettings,
    arguments: &TrainedArgs,
    device: &Device,
) -> Result<Option<(Streamed, Decoder)>> {
    let directory = RunDirectory::existing(&arguments.run);
    let store = directory.store();
    if !store.is_dir() || arguments.best || settings.compression.is_some() || !settings.run.freeze.is_empty() {
        return Ok(None);
    }
    let model = settings.model.init(&device.clone().autodiff())?;
    let values = initial_words(&settings.model);
    let opened = FileStore::open(&store).and_then(|store| Streamed::open_with(store, model, &values));
    let (streamed, model) = match opened {
        Ok(opened) => opened,
        // Such as that of a run that is under way.
        Err(error) => {
            tracing::warn!("the model is read into memory: {error}");
            return Ok(None);
        }
    };
    let newest = Checkpoints::new(directory.checkpoints(), 1)?.newest()?;
    if newest.and_then(|path| step_of_checkpoint(&path)) > step_of_store(&streamed) {
        return Ok(None);
    }
    // Words that are read by rows stay there.
    let by_rows = model.words().is_some_and(|words| streamed.rows(words.id).is_some());
    let words = settings.model.words_path();
    let in_block = |path: &str| path.starts_with("h.") || path.starts_with("layers.");
    let stays = |path: &str| !(in_block(path) || by_rows && path == words);
    let model = streamed.with_resident(model, stays)?;
    tracing::info!("the model's blocks are read from {} for each token", printable(&store));
    Ok(Some((streamed, settings.run.policy().autocast(model)?.valid())))
}

fn step_of_checkpoint(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

fn step_of_store(streamed: &Streamed) -> Option<u64> {
    let note: serde_json::Value = serde_json::from_str(&streamed.note()).ok()?;
    note["state"]["step"].as_u64()
}
