//! Generates texts from a prompt that is read once.

use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::Tensor;
use kiln_data::sample_rng;
use kiln_models::{DecoderReader, Sampling};
use rand::RngExt;

use super::text::Utf8Stream;

/// A decoder that has read a prompt, and the settings of the continuation.
pub(super) struct Generator<'a> {
    reader: DecoderReader<'a>,
    /// The logits of the token after the prompt.
    logits: Tensor<1>,
    sampling: Sampling,
    /// The bytes of each token.
    bytes: Vec<Vec<u8>>,
    seed: u64,
    prompt_seconds: f64,
}

/// Whether the consumer of a text still takes more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consumer {
    Open,
    /// Its reader is gone.
    Closed,
}

/// The reason why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has all of its tokens.
    Done,
    /// The user interrupted it.
    Interrupted,
    /// The reader of the text is gone.
    Closed,
}

/// A text that was generated.
pub(super) struct Generated {
    pub(super) text: String,
    pub(super) tokens: usize,
    pub(super) seconds: f64,
    pub(super) end: End,
}

impl<'a> Generator<'a> {
    /// Reads the prompt `ids`.
    pub(super) fn new(
        mut reader: DecoderReader<'a>,
        ids: &[u32],
        sampling: Sampling,
        bytes: Vec<Vec<u8>>,
        seed: u64,
    ) -> Result<Self> {
        let started = Instant::now();
        let logits = reader.read(ids)?;
        numbers(&logits)?; // waits for the device
        Ok(Self { reader, logits, sampling, bytes, seed, prompt_seconds: started.elapsed().as_secs_f64() })
    }

    /// The time that the prompt took.
    pub(super) fn prompt_seconds(&self) -> f64 {
        self.prompt_seconds
    }

    /// Generates text `sample` of up to `tokens` tokens. `tell` gets its characters as soon as they are complete. Each token is a
    /// function of the prompt, the seed, the sample and the tokens before it.
    pub(super) fn generate(
        &self,
        sample: usize,
        tokens: usize,
        stop: impl Fn() -> bool,
        mut tell: impl FnMut(&str) -> Result<Consumer>,
    ) -> Result<Generated> {
        let started = Instant::now();
        let (mut reader, mut logits) = (self.reader.clone(), self.logits.clone());
        let (mut stream, mut generated) = (Utf8Stream::default(), 0);
        let (mut text, mut end) = (String::new(), End::Done);
        while generated < tokens {
            if stop() {
                end = End::Interrupted;
                break;
            }
            let uniform = sample_rng(self.seed, sample as u64, generated as u64).random::<f64>();
            let token = self.sampling.choose(&numbers(&logits)?, uniform)?;
            generated += 1;
            let piece = stream.push(self.bytes.get(token).map_or(&[][..], Vec::as_slice));
            text += &piece;
            if tell(&piece)? == Consumer::Closed {
                end = End::Closed;
                break;
            }
            if generated < tokens {
                logits = reader.read(&[token as u32])?;
            }
        }
        let rest = stream.finish();
        text += &rest;
        if end != End::Closed && tell(&rest)? == Consumer::Closed {
            end = End::Closed;
        }
        Ok(Generated { text, tokens: generated, seconds: started.elapsed().as_secs_f64(), end })
    }
}

fn numbers(logits: &Tensor<1>) -> Result<Vec<f32>> {
    let data = logits.clone().try_into_data().context("cannot read the logits from the device")?;
    Ok(data.iter::<f32>().collect())
}
