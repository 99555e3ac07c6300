//! A decoder by name, or that of a Hugging Face folder.

use std::path::Path;

use anyhow::Result;
use kiln_data::{TokenizerKind, printable};
use kiln_models::{DecoderConfig, GptConfig};

use super::settings::GptSettings;
use crate::usage::Usage;

/// Tokens of a sequence on which the model of a folder is trained, if nothing else is said and it can read as many.
const CONTEXT: usize = 512;

/// The configuration called `model`, with these sizes, or that in the folder `model`, with sequences of `context` tokens.
///
/// # Errors
/// Those of the name or the folder, and [`Usage`] for a context that the model of the folder does not have.
pub(crate) fn sized(model: &str, vocab: usize, context: usize) -> Result<DecoderConfig> {
    match Path::new(model).is_dir() {
        true => within(DecoderConfig::from_folder(model)?, context),
        false => Ok(DecoderConfig::Gpt(named(model, vocab, context)?)),
    }
}

/// The configuration called `name`.
///
/// # Errors
/// [`Usage`] for a name that no model has.
pub(crate) fn named(name: &str, vocab: usize, context: usize) -> Result<GptConfig, Usage> {
    GptConfig::named(name, vocab, context)
        .map_err(|error| Usage(format!("{error}, or the folder of a Hugging Face model")))
}

/// Makes the model in `folder`, its weights and its tokenizer those of a run, with sequences of `context` tokens. A run with other weights, as
/// `other_weights` says, begins with these.
///
/// # Errors
/// Those of the folder, and [`Usage`] for a context that its model does not have and for a folder without a tokenizer.
pub(crate) fn of_folder(
    settings: &mut GptSettings,
    folder: &Path,
    context: Option<usize>,
    other_weights: bool,
) -> Result<()> {
    let folder = std::path::absolute(folder)?;
    let config = DecoderConfig::from_folder(&folder)?;
    let context = match (&config, context) {
        (_, Some(context)) => context,
        // Learned positions have a row each in the file.
        (DecoderConfig::Gpt(_), None) => config.context(),
        _ => config.context().min(CONTEXT),
    };
    settings.model = within(config, context)?;
    settings.data.text.tokenizer = match (folder.join("tokenizer.json").is_file(), folder.join("vocab.json").is_file())
    {
        (true, _) => TokenizerKind::Folder(folder.clone()),
        (false, true) => TokenizerKind::Bpe(folder.clone()),
        (false, false) => {
            let reason = "it has neither tokenizer.json nor vocab.json and merges.txt";
            return Err(Usage(format!("the folder '{}' has no tokenizer: {reason}", printable(&folder))).into());
        }
    };
    if !other_weights {
        settings.run.init = Some(folder);
    }
    Ok(())
}

fn within(config: DecoderConfig, context: usize) -> Result<DecoderConfig> {
    let most = config.context();
    match context <= most {
        true => Ok(config.with_context(context)),
        false => Err(Usage(format!("--context is {context}, expected at most the model's {most}")).into()),
    }
}
