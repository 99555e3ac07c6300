//! Text that a decoder writes as a continuation of held-out data, for the report of its run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use burn::data::dataset::Dataset;
use burn::module::Module;
use kiln_checkpointing::Streamed;
use kiln_data::{Tokenizer, TokenizerKind, sample_rng};
use kiln_models::{Decoder, DecoderParts, DecoderReader, Sampling};
use kiln_report::Text;
use rand::RngExt;

use super::data::TokenData;
use super::model::stops;
use crate::pipelines::run::{Finder, Findings};

/// The most tokens to write, and the time limit.
const TOKENS: usize = 120;
/// Tokens of a model in a store: each reads the whole store, and keys and values take memory for all of them.
const STORED_TOKENS: usize = 16;
const TIME: Duration = Duration::from_secs(10);
/// Tokens of the held-out text that the model continues.
const PROMPT: usize = 24;
/// The divisor of logits: below 1, likely tokens become likelier.
const TEMPERATURE: f64 = 0.8;
/// Tokens are drawn from this many of the likeliest.
const TOP: usize = 40;

/// Lets a model continue the beginning of `data`. Equal seeds draw equal tokens. A model whose outputs are not finite writes nothing,
/// and its run is complete without this text. The tokenizer is opened then: it would take memory during the run.
pub(super) fn finder(data: TokenData, tokenizer: TokenizerKind, seed: u64) -> Finder<Decoder> {
    Box::new(move |subject| {
        let (prompt, of) = beginning(&data).context("cannot read the held-out data")?;
        let prompt = prompt.as_slice();
        let opened = Tokenizer::open(&tokenizer).context("cannot open the tokenizer");
        let written = |opened: Tokenizer| -> Result<(Tokenizer, Vec<u32>)> {
            let ends = match data {
                TokenData::Text(_) => vec![],
                TokenData::Records(_) => stops(&tokenizer, &opened)?,
            };
            let written = write(subject.model, subject.streamed, prompt, (seed, &ends))?;
            Ok((opened, written))
        };
        let (tokenizer, written) = match opened.and_then(written) {
            Ok(written) => written,
            Err(error) => {
                tracing::warn!("the report has no text of the model: {error:#}");
                return Ok(Findings::default());
            }
        };
        let count = written.len();
        let text = Text {
            prompt: decoded(&tokenizer, prompt),
            written: decoded(&tokenizer, &written),
            note: format!(
                "Grey: {} tokens of {of}. Black: {count} tokens of the model, temperature {TEMPERATURE}, top {TOP}, \
                 seed {seed}.",
                prompt.len()
            ),
        };
        Ok(Findings { text: Some(text), ..Findings::default() })
    })
}

/// The first tokens of a text, or those of a record before the first one that is learned, and where they are from.
fn beginning(data: &TokenData) -> Result<(Vec<u32>, &'static str)> {
    let (mut tokens, end, of) = match data {
        TokenData::Text(text) => (Dataset::get(text, 0)?, PROMPT, "the held-out text"),
        TokenData::Records(documents) => {
            let first = documents.learned(0).next().map_or(1, |learned| learned.start as usize);
            // Of a text all is learned.
            (documents.get(0)?, if first > 1 { first } else { PROMPT }, "a held-out record")
        }
    };
    tokens.truncate(end);
    Ok((tokens, of))
}

/// A reader of a model, some of whose parameters may be in a store: it brings in half a block after the other for each token.
pub(crate) fn reader<'a>(model: &'a Decoder, streamed: Option<&'a Streamed>) -> DecoderReader<'a> {
    let Some(streamed) = streamed else { return DecoderReader::new(model) };
    let parts = DecoderParts::new(|half| streamed.filled(half).map_err(|error| error.to_string()));
    let parts = match model.words().and_then(|words| streamed.rows(words.id)) {
        Some(words) => parts.with_words(words, || streamed.take_failure().map(|error| error.to_string())),
        None => parts,
    };
    DecoderReader::in_parts(model, parts)
}

/// Tokens after `prompt`, up to one of `ends`.
fn write(
    model: &Decoder,
    streamed: Option<&Streamed>,
    prompt: &[u32],
    (seed, ends): (u64, &[u32]),
) -> Result<Vec<u32>> {
    let model = model.valid();
    let sampling = Sampling::new(TEMPERATURE).with_top_k(TOP);
    let tokens = if streamed.is_some() { STORED_TOKENS } else { TOKENS };
    let (mut reader, begun) = (reader(&model, streamed).with_context(prompt.len() + tokens), Instant::now());
    let mut logits = reader.read(prompt)?;
    let mut written = vec![];
    while written.len() < tokens && begun.elapsed() < TIME {
        let uniform = sample_rng(seed, 0, written.len() as u64).random::<f64>();
        let numbers = logits.try_into_data().context("cannot read the logits from the device")?;
        let token = sampling.choose(&numbers.iter::<f32>().collect::<Vec<_>>(), uniform)? as u32;
        if ends.contains(&token) {
            break;
        }
        written.push(token);
        logits = reader.read(&[token])?;
    }
    Ok(written)
}

/// Converts tokens to text. Bytes that are not valid UTF-8 are shown as such.
fn decoded(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let tokens = tokenizer.token_bytes();
    let bytes: Vec<u8> = ids.iter().filter_map(|id| tokens.get(*id as usize)).flatten().copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use burn::module::{ModuleMapper, Param};
    use burn::tensor::{Device, Tensor};
    use kiln_models::{DecoderConfig, GptConfig};

    use super::*;

    #[test]
    fn the_same_seed_writes_the_same_text_beyond_the_context() {
        let device = Device::flex().autodiff();
        let model = DecoderConfig::Gpt(GptConfig::tiny(256, 16).with_layers(1)).init(&device).unwrap();
        let prompt: Vec<u32> = b"Call me".map(u32::from).to_vec();
        let text = write(&model, None, &prompt, (3, &[])).unwrap();
        assert!(text.len() > 16 && text == write(&model, None, &prompt, (3, &[])).unwrap());
        // A token that ends a text is no part of it.
        let end = text[text.len() / 2];
        let ended = write(&model, None, &prompt, (3, &[end])).unwrap();
        assert!(text.starts_with(&ended) && text[ended.len()] == end, "{end} ends {ended:?}");
        assert_eq!(decoded(&Tokenizer::Bytes, &[72, 105]), "Hi");
    }

    #[test]
    fn a_model_whose_outputs_are_no_numbers_writes_nothing() {
        struct Broken;
        impl ModuleMapper for Broken {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                param.map(|tensor| tensor * f32::NAN)
            }
        }
        let model = DecoderConfig::Gpt(GptConfig::tiny(256, 16).with_layers(1)).init(&Device::flex()).unwrap();
        assert!(write(&model.map(&mut Broken), None, &[1, 2, 3], (1, &[])).is_err());
    }
}
