//! The model of a Hugging Face folder that was never trained here.

use anyhow::Result;
use kiln_models::DecoderConfig;
use kiln_runs::CONFIG;

use crate::cli::TrainedArgs;
use crate::pipelines::{GptSettings, next_token};

/// The settings of the folder's model, with all of its context. `None` where the arguments name something else: a run, say.
///
/// # Errors
/// Those of the folder.
pub(super) fn untrained(arguments: &TrainedArgs) -> Result<Option<GptSettings>> {
    let folder = &arguments.run;
    let is_model = folder.join("config.json").is_file() && !folder.join(CONFIG).exists();
    if !is_model || arguments.config.is_some() || arguments.best {
        return Ok(None);
    }
    let (mut settings, context) = (next_token::recipe(), DecoderConfig::from_folder(folder)?.context());
    next_token::begin_with(&mut settings, folder, Some(context), false)?;
    settings.run.leave_training(arguments.device.as_ref());
    Ok(Some(settings))
}
