//! The data of a language model: windows of a text, or records.

use std::path::Path;

use anyhow::{Result, bail};
use kiln_data::{
    DocumentBatch, Documents, Loader, Order, RecordEncoder, Records, Remainder, TextTokens, TokenBatch, Tokenizer,
    TrainTest, has_records, printable,
};
use kiln_report::counted;

use super::settings::GptSettings;
use crate::fixtures;
use crate::host::cache_directory;
use crate::pipelines::settings::RunSettings;
use crate::usage::Usage;

/// Batches of documents that are sorted by length together.
const POOL: usize = 16;

/// One part of the data: what is trained on, or what is held out.
#[derive(Clone, Debug)]
pub enum TokenData {
    /// A text in windows.
    Text(TextTokens),
    /// Records.
    Records(Documents),
}

impl TokenData {
    /// Number of samples.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Records(documents) => documents.len(),
        }
    }

    /// The length of the longest record; 0 for a text.
    fn longest(&self) -> u32 {
        match self {
            Self::Text(_) => 0,
            Self::Records(documents) => documents.lengths().iter().copied().max().unwrap_or(0),
        }
    }
}

/// A batch of the largest samples of both parts, to plan with. `None` if all are of one size.
///
/// # Errors
/// Those of the tokens' file.
pub(super) fn largest(data: &TrainTest<TokenData>, samples: usize) -> Result<Option<TokenBatch>> {
    let longest = if data.train.longest() < data.test.longest() { &data.test } else { &data.train };
    match longest {
        TokenData::Text(_) => Ok(None),
        TokenData::Records(documents) => Ok(Some(DocumentBatch::longest(documents, samples)?.into())),
    }
}

/// Opens the data that the settings name, or the fixture if they name none. Their tokens are kept in the user's cache.
///
/// # Errors
/// Those of [`kiln_data::open_text`] and of [`Records::open`], and [`Usage`] for records to evaluate on beside a text.
pub fn open(settings: &GptSettings, tokenizer: &Tokenizer) -> Result<TrainTest<TokenData>> {
    let text = &settings.data.text;
    let fixture = || fixtures::data_set("moby-dick/moby-dick.txt", "data/sotu after `kiln fetch sotu`");
    let path = settings.run.data.clone().map_or_else(fixture, Ok)?;
    if !has_records(&path) {
        if let Some(validation) = &text.validation {
            let validation = printable(validation);
            bail!(Usage(format!(
                "--validation is '{validation}', expected --data with records beside it, and not a text"
            )));
        }
        let TrainTest { train, test } = open_text(&path, settings, tokenizer)?;
        return Ok(TrainTest { train: TokenData::Text(train), test: TokenData::Text(test) });
    }
    let encoder = RecordEncoder::open(tokenizer, &text.tokenizer)?;
    let train = open_records(&path, &encoder, settings)?;
    let TrainTest { train, test } = match &text.validation {
        Some(validation) => TrainTest { train, test: open_records(validation, &encoder, settings)? },
        None => train.split(text.held_out)?,
    };
    Ok(TrainTest { train: TokenData::Records(train), test: TokenData::Records(test) })
}

fn open_text(path: &Path, settings: &GptSettings, tokenizer: &Tokenizer) -> Result<TrainTest<TextTokens>> {
    let (length, held_out) = (settings.model.context(), settings.data.text.held_out);
    if let Some(cache) = cache_directory() {
        match kiln_data::open_text_cached(path, tokenizer, length, held_out, cache.join("tokens")) {
            // Without a cache directory the tokens stay in memory, and are made again next time.
            Err(error @ kiln_data::Error::Write { .. }) => tracing::debug!("{error}"),
            opened => return Ok(opened?),
        }
    }
    Ok(kiln_data::open_text(path, tokenizer, length, held_out)?)
}

/// The records of a file or a directory, cut to the context. Says how many are left out.
fn open_records(path: &Path, encoder: &RecordEncoder<'_>, settings: &GptSettings) -> Result<Documents> {
    let cached = || match cache_directory() {
        Some(cache) => match Records::open_cached(path, encoder, cache.join("tokens")) {
            Err(error @ kiln_data::Error::Write { .. }) => {
                tracing::debug!("{error}");
                Records::open(path, encoder)
            }
            opened => opened,
        },
        None => Records::open(path, encoder),
    };
    let context = settings.model.context();
    // A document has a token before the first that is predicted.
    let records = cached()?.cut_to(u32::try_from(context).unwrap_or(u32::MAX).saturating_add(1))?;
    if settings.run.replica.index() == 0 {
        say(path, &records, context);
    }
    Ok(records.documents)
}

/// Says which part of some records is not learned.
fn say(path: &Path, records: &Records, context: usize) {
    let (path, left_out) = (printable(path), records.left_out);
    if left_out > 0 {
        let all = counted(records.documents.len() + left_out, "record");
        tracing::warn!("{path}: {left_out} of {all} left out, which have no token to learn within {context} tokens");
    }
    if records.changed > 0 {
        let answers = counted(records.changed, "answer");
        tracing::warn!(
            "{path}: {answers} not learned, because the chat template changes them when other messages follow. The last answer of a record is \
             always learned: write each answer as the end of a record of its own"
        );
    }
}

/// Batches of the two parts.
pub(super) fn loaders(data: TrainTest<TokenData>, run: &RunSettings) -> Result<TrainTest<Loader<TokenBatch>>> {
    let seed = run.seed;
    let config = run
        .loader(data.train.len())
        .with_order(Order::Shuffled { seed })
        .with_replica(run.replica)
        .with_remainder(Remainder::Drop);
    let config = config.with_batch_size(run.batch_size);
    let train = match data.train {
        TokenData::Text(text) => TokenBatch::windows(text, Some(seed), config)?,
        TokenData::Records(documents) => TokenBatch::documents(documents, Some(POOL), config)?,
    };
    Ok(TrainTest { train, test: test_loader(data.test, run)? })
}

/// Batches of the part for evaluation.
///
/// # Errors
/// Those of the loader.
pub fn test_loader(data: TokenData, run: &RunSettings) -> Result<Loader<TokenBatch>> {
    let config = run.loader(data.len());
    Ok(match data {
        TokenData::Text(text) => TokenBatch::windows(text, None, config)?,
        TokenData::Records(documents) => TokenBatch::documents(documents, Some(POOL), config)?,
    })
}
