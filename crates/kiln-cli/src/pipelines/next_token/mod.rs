//! Language modelling with a decoder: a GPT, or the model of a Hugging Face folder.

mod continuation;
mod model;
mod settings;
mod task;

use anyhow::Result;
use burn::tensor::Device;
use kiln_data::{Loader, Order, Remainder, TextBatch, TextTokens, Tokenizer, TrainTest};
use kiln_models::DecoderConfig;
use kiln_training::InitialValues;

use crate::host::cache_directory;
use crate::pipelines::run::{Run, Setup};
use crate::pipelines::settings::RunSettings;
use crate::pipelines::teacher::TeacherModel;
use crate::{device, fixtures};

pub(crate) use continuation::reader;
pub(crate) use model::{begin_with, folder, named, of_folder, rate};
pub use settings::{GptSettings, Text, TextSettings, fixture_recipe, recipe};
pub use task::{NextToken, next_token};

/// Opens the text that the settings name, or the fixture if they name none. Its tokens are kept in the user's cache.
///
/// # Errors
/// Those of [`kiln_data::open_text`].
pub fn open(settings: &GptSettings, tokenizer: &Tokenizer) -> Result<TrainTest<TextTokens>> {
    let (length, held_out) = (settings.model.context(), settings.data.text.held_out);
    let fixture = || fixtures::data_set("moby-dick/moby-dick.txt", "data/sotu after `kiln fetch sotu`");
    let path = settings.run.data.clone().map_or_else(fixture, Ok)?;
    if let Some(cache) = cache_directory() {
        match kiln_data::open_text_cached(&path, tokenizer, length, held_out, cache.join("tokens")) {
            // Without a cache directory the tokens stay in memory, and are made again next time.
            Err(error @ kiln_data::Error::Write { .. }) => tracing::debug!("{error}"),
            opened => return Ok(opened?),
        }
    }
    Ok(kiln_data::open_text(path, tokenizer, length, held_out)?)
}

/// Batches of a text's two parts.
fn loaders(data: TrainTest<TextTokens>, run: &RunSettings) -> Result<TrainTest<Loader<TextBatch>>> {
    let (text, seed) = (data.train, run.seed);
    let config = run
        .loader(text.len())
        .with_order(Order::Shuffled { seed })
        .with_replica(run.replica)
        .with_remainder(Remainder::Drop);
    let config = config.with_batch_size(run.batch_size);
    let train = TextBatch::loader(text, Some(seed), config)?;
    Ok(TrainTest { train, test: test_loader(data.test, run)? })
}

/// Batches of the part for evaluation.
///
/// # Errors
/// Those of the loader.
pub fn test_loader(text: TextTokens, run: &RunSettings) -> Result<Loader<TextBatch>> {
    let config = run.loader(text.len());
    Ok(TextBatch::loader(text, None, config)?)
}

/// The run of the settings, and its device.
///
/// # Errors
/// Those of the device, the data and the settings.
pub fn run(mut settings: GptSettings) -> Result<(Run<NextToken>, Device)> {
    let (tokenizer, task) = next_token(&settings)?;
    let data = open(&settings, &tokenizer)?;
    settings.run.fit_batch(data.train.len())?;
    let device = device::open(settings.run.own_device())?;
    let model = settings.model.clone();
    let compared = |own: &GptSettings| {
        Ok([
            ("tokens in its vocabulary", own.model.vocab(), model.vocab()),
            ("tokens of context", own.model.context(), model.context()),
        ])
    };
    let teacher = TeacherModel::open::<NextToken, _>(&settings, &device, compared, |own| {
        let config = own.model.clone();
        move |device: &Device| config.init(device)
    })?;
    let findings = continuation::finder(data.test.clone(), settings.data.text.tokenizer.clone(), settings.run.seed);
    let setup = Setup::new("gpt", loaders(data, &settings.run)?, settings);
    let words = initial_words(&model);
    Ok((Run::new(task.taught(teacher), move |device| model.init(device), words, findings, setup), device))
}

/// The initial words of a model, some rows at a time.
pub(crate) fn initial_words(model: &DecoderConfig) -> InitialValues {
    let (path, model) = (model.words_path(), model.clone());
    InitialValues::default().with_rows(path, move |rows, device| model.initial_words(rows, device))
}
