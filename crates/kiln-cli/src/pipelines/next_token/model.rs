//! A decoder by name, or that of a Hugging Face folder.

use std::path::Path;

use anyhow::Result;
use kiln_data::{SpecialTokens, Tokenizer, TokenizerKind, printable};
use kiln_models::{DecoderConfig, GptConfig};

use super::settings::GptSettings;
use crate::usage::Usage;

/// Tokens of a sequence on which a model of the Llama family is trained, if nothing else is said and it can read as many.
const CONTEXT: usize = 512;
/// The highest learning rates with which trained weights, and adapters of them, are usually trained on.
const RATE: f64 = 2e-5;
const RATE_OF_ADAPTERS: f64 = 2e-4;

/// The folder that `model` names, if it is not the name of a model.
pub(crate) fn folder(model: &str) -> Option<&Path> {
    Some(Path::new(model)).filter(|folder| GptConfig::named(model, 1, 1).is_err() && folder.is_dir())
}

/// The configuration called `name`.
///
/// # Errors
/// [`Usage`] for a name that no model has.
pub(crate) fn named(name: &str, vocab: usize, context: usize) -> Result<GptConfig, Usage> {
    GptConfig::named(name, vocab, context)
        .map_err(|error| Usage(format!("{error}, or the folder of a Hugging Face model")))
}

/// The learning rate of a run that begins with the weights of a folder.
pub(crate) fn rate(has_adapters: bool) -> f64 {
    if has_adapters { RATE_OF_ADAPTERS } else { RATE }
}

/// The configuration of the model in `folder`, with sequences of `context` tokens, or else of at most `most`.
///
/// # Errors
/// Those of the folder, and [`Usage`] for a context that its model does not have.
pub(crate) fn of_folder(folder: &Path, context: Option<usize>, most: usize) -> Result<DecoderConfig> {
    let config = DecoderConfig::from_folder(folder)?;
    let own = config.context();
    match (&config, context) {
        (_, Some(context)) if context > own => {
            Err(Usage(format!("--context is {context}, expected at most the model's {own}")).into())
        }
        (_, Some(context)) => Ok(config.with_context(context)),
        // Learned positions have a row each in the file.
        (DecoderConfig::Gpt(_), None) => Ok(config),
        (_, None) => Ok(config.with_context(own.min(most))),
    }
}

/// Makes the model in `folder`, its weights and its tokenizer those of a run, with sequences of `context` tokens. A run with other weights, as
/// `other_weights` says, begins with these.
///
/// # Errors
/// Those of [`of_folder`] and of the weights, and [`Usage`] for a folder without a tokenizer.
pub(crate) fn begin_with(
    settings: &mut GptSettings,
    folder: &Path,
    context: Option<usize>,
    other_weights: bool,
) -> Result<()> {
    let folder = std::path::absolute(folder)?;
    settings.model = of_folder(&folder, context, CONTEXT)?;
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
        settings.model.check_folder(&folder)?;
        settings.run.init = Some(folder);
    }
    Ok(())
}

/// The tokens after which a text ends: those that the tokenizer's folder names.
///
/// # Errors
/// Those of [`SpecialTokens::open`].
pub(crate) fn stops(kind: &TokenizerKind, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    match kind.folder() {
        Some(folder) => Ok(SpecialTokens::open(folder)?.stops(tokenizer)),
        None => Ok(vec![]),
    }
}
