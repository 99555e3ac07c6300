//! The decoder of a run that streams: its blocks stay in the run's store.

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Device;
use kiln_checkpointing::{FileStore, Streamed};
use kiln_data::printable;
use kiln_models::Gpt;

use crate::cli::TrainedArgs;
use crate::pipelines::GptSettings;
use crate::pipelines::next_token::initial_words;
use crate::run_directory::RunDirectory;
use crate::settings_file::SettingsFile;
use crate::trained::Trained;

/// The parameters that are in the store of a run, and the model without them. `None` for a run without one, and where the weights are
/// not those of the store: the best ones, and those of a model with attachments or with frozen parameters.
pub(super) fn stored(
    settings: &GptSettings,
    arguments: &TrainedArgs,
    device: &Device,
) -> Result<Option<(Streamed, Gpt)>> {
    let directory = RunDirectory::existing(&arguments.run);
    let mut trained = Trained::read(&SettingsFile::of_checkpoint(&arguments.run, arguments.config.as_ref())?)?;
    let store = trained.run_mut().store.take().unwrap_or_else(|| directory.store());
    if !store.is_dir() || arguments.best || settings.compression.is_some() || !settings.run.freeze.is_empty() {
        return Ok(None);
    }
    let model = settings.model.init(&device.clone().autodiff())?;
    let values = initial_words(&settings.model);
    let opened = FileStore::open(&store).and_then(|store| Streamed::open_with(store, model, &values));
    let (streamed, model) = match opened {
        Ok(opened) => opened,
        // A run that is under way uses it.
        Err(error) => {
            tracing::info!("the model is read into memory: {error}");
            return Ok(None);
        }
    };
    // Words that are in parts are read by rows.
    let in_parts = model.words().is_some_and(|words| streamed.parts(words.id).len() > 1);
    let stays = |path: &str| !(path.starts_with("h.") || in_parts && path == "wte.weight");
    let model = streamed.with_resident(model, stays)?;
    tracing::info!("the model's blocks are read from {} for each token", printable(&store));
    Ok(Some((streamed, settings.run.policy().autocast(model)?.valid())))
}
