//! Generates texts from a prompt that is read once.

use std::cell::Cell;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::tensor::Tensor;
use kiln_data::sample_rng;
use kiln_models::{DecoderReader, Sampling};
use rand::RngExt;

use super::text::Utf8Stream;

/// A decoder, and the settings of the texts that it writes.
pub(super) struct Writer<'a> {
    /// The decoder, before it has read a token.
    pub(super) reader: DecoderReader<'a>,
    pub(super) sampling: Sampling,
    /// The most tokens of a text.
    pub(super) tokens: usize,
    /// The bytes of each token.
    pub(super) bytes: Vec<Vec<u8>>,
    /// The tokens after which a text ends. They are no part of it.
    pub(super) stops: Vec<u32>,
    pub(super) seed: u64,
    /// Whether the user asks for an end.
    pub(super) interrupted: Box<dyn Fn() -> bool + 'a>,
    /// Tokens that were written, and the seconds that they took with their prompts.
    pub(super) total: Cell<(usize, f64)>,
}

/// A decoder that has read a prompt.
pub(super) struct Prompted<'a> {
    writer: &'a Writer<'a>,
    reader: DecoderReader<'a>,
    /// The logits of the token after the prompt.
    logits: Tensor<1>,
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
    /// It has all of its tokens, or came to its end.
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

impl Writer<'_> {
    /// Reads the prompt `ids`.
    pub(super) fn prompt(&self, ids: &[u32]) -> Result<Prompted<'_>> {
        let started = Instant::now();
        let mut reader = self.reader.clone().with_context(ids.len().saturating_add(self.tokens));
        let logits = reader.read(ids)?;
        numbers(&logits)?; // waits for the device
        self.note(0, started);
        Ok(Prompted { writer: self, reader, logits })
    }

    fn note(&self, tokens: usize, started: Instant) {
        let (before, seconds) = self.total.get();
        self.total.set((before + tokens, seconds + started.elapsed().as_secs_f64()));
    }
}

impl Prompted<'_> {
    /// Generates text `sample`. `tell` gets its characters as soon as they are complete. Each token is a function of the prompt, the seed, the
    /// sample and the tokens before it.
    pub(super) fn generate(&self, sample: usize, mut tell: impl FnMut(&str) -> Result<Consumer>) -> Result<Generated> {
        let (started, writer) = (Instant::now(), self.writer);
        let (mut reader, mut logits) = (self.reader.clone(), self.logits.clone());
        let (mut stream, mut generated) = (Utf8Stream::default(), 0);
        let (mut text, mut end) = (String::new(), End::Done);
        while generated < writer.tokens {
            if (writer.interrupted)() {
                end = End::Interrupted;
                break;
            }
            let uniform = sample_rng(writer.seed, sample as u64, generated as u64).random::<f64>();
            let token = writer.sampling.choose(&numbers(&logits)?, uniform)?;
            if writer.stops.contains(&(token as u32)) {
                break;
            }
            generated += 1;
            let piece = stream.push(writer.bytes.get(token).map_or(&[][..], Vec::as_slice));
            text += &piece;
            if tell(&piece)? == Consumer::Closed {
                end = End::Closed;
                break;
            }
            if generated < writer.tokens {
                logits = reader.read(&[token as u32])?;
            }
        }
        let rest = stream.finish();
        text += &rest;
        if end != End::Closed && tell(&rest)? == Consumer::Closed {
            end = End::Closed;
        }
        writer.note(generated, started);
        Ok(Generated { text, tokens: generated, seconds: started.elapsed().as_secs_f64(), end })
    }
}

fn numbers(logits: &Tensor<1>) -> Result<Vec<f32>> {
    let data = logits.clone().try_into_data().context("cannot read the logits from the device")?;
    Ok(data.iter::<f32>().collect())
}
