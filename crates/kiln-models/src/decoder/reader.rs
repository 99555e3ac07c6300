//! Reads a text of any length with a decoder, some tokens at a time.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::model::Decoder;
use super::parts::DecoderParts;
use crate::Error;
use crate::cache::DecoderCache;

/// Reads a text of any length, and gives the logits of the token that comes next.
///
/// With a cache ([`new`](Self::new)) only the new token is computed. The keys of tokens in the cache are those of their positions, and cannot
/// move. When the context is full, the older half of it is dropped, and the newer half is computed again at positions from 0 on. The model then sees
/// between half of its context and all of it. Without a cache ([`uncached`](Self::uncached)) the newest tokens are computed again for
/// each token, and the model always sees its whole context, as in nanoGPT's `sample.py`.
///
/// ```
/// use burn::tensor::Device;
/// use kiln_models::{DecoderReader, GptConfig, Sampling};
///
/// let model = GptConfig::tiny(256, 16).init(&Device::flex())?;
/// let (mut reader, greedy) = (DecoderReader::new(&model), Sampling::new(0.0));
/// let mut text = b"Call me".to_vec();
/// let mut logits = reader.read(&text.iter().map(|byte| u32::from(*byte)).collect::<Vec<_>>())?;
/// while text.len() < 30 {
///     let numbers: Vec<f32> = logits.into_data().iter().collect();
///     let next = greedy.choose(&numbers, 0.0)?;
///     text.push(next as u8);
///     logits = reader.read(&[next as u32])?;
/// }
/// # Ok::<(), kiln_models::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DecoderReader<'a> {
    model: Decoder,
    parts: DecoderParts<'a>,
    device: Device,
    /// The most tokens in sight.
    context: usize,
    /// The newest tokens, at most the context.
    window: Vec<u32>,
    cache: Option<DecoderCache>,
}

impl<'a> DecoderReader<'a> {
    /// A reader that keeps keys and values.
    pub fn new(model: impl Into<Decoder>) -> Self {
        Self::in_parts(model, DecoderParts::in_memory())
    }

    /// A reader that keeps keys and values, of a model whose parameters come into memory when they are used, all of them once for each call
    /// of [`read`](Self::read).
    pub fn in_parts(model: impl Into<Decoder>, parts: DecoderParts<'a>) -> Self {
        let model = model.into();
        let (device, context) = (model.device(), model.context());
        Self { model, parts, device, context, window: vec![], cache: Some(DecoderCache::new()) }
    }

    /// A reader without a cache: it computes all tokens in sight again for each token.
    pub fn uncached(model: impl Into<Decoder>) -> Self {
        Self::new(model).without_cache()
    }

    /// The reader, computing all tokens in sight again for each token.
    #[must_use]
    pub fn without_cache(self) -> Self {
        Self { cache: None, ..self }
    }

    /// The reader of a text whose model sees at most `tokens` tokens, before it has read any. A text that is not longer is read as with the whole
    /// context, and keys and values take memory for so many tokens.
    #[must_use]
    pub fn with_context(self, tokens: usize) -> Self {
        Self { context: tokens.clamp(1, self.model.context()), ..self }
    }

    /// The tokens that the model sees: the newest ones that were read.
    pub fn window(&self) -> &[u32] {
        &self.window
    }

    /// Reads the tokens `ids`, each below `vocab`, and returns the logits `[V]` of the token after them. If there are more tokens than
    /// the context holds, only the newest ones count.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for no tokens and for an id that is not below `vocab`. [`Error::Unread`] for parameters that cannot be read; the
    /// reader is of no use then.
    pub fn read(&mut self, ids: &[u32]) -> Result<Tensor<1>, Error> {
        let vocab = self.model.vocab();
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            let expected = format!("below {vocab}");
            return Err(Error::InvalidInput { size: "token id", value: *id as usize, expected });
        }
        if ids.is_empty() {
            let expected = "at least 1".into();
            return Err(Error::InvalidInput { size: "number of tokens", value: 0, expected });
        }
        let step = next_step(self.window.len(), ids.len(), self.context, self.cache.is_some());
        self.window.extend(ids);
        let x_btc = match (step, &mut self.cache) {
            (Step::Extend, Some(cache)) => {
                self.model.extend_in(&self.parts, self.context, tensor(ids, &self.device), cache)?
            }
            (Step::Extend, None) => self.model.features_in(&self.parts, tensor(&self.window, &self.device))?,
            (Step::Again { keep }, cache) => {
                self.window.drain(..self.window.len() - keep);
                let ids_bt = tensor(&self.window, &self.device);
                match cache {
                    Some(cache) => {
                        *cache = DecoderCache::new();
                        self.model.extend_in(&self.parts, self.context, ids_bt, cache)?
                    }
                    None => self.model.features_in(&self.parts, ids_bt)?,
                }
            }
        };
        let [_, t, _] = x_btc.dims();
        let logits = self.model.head_in(&self.parts, x_btc.narrow(1, t - 1, 1)).flatten(0, 2);
        self.parts.were_read()?;
        Ok(logits)
    }
}

/// The way in which the next tokens are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// They are read after the tokens in sight, all of which stay.
    Extend,
    /// They are read together with the newest tokens in sight, so that `keep` tokens are then in sight. All others are dropped.
    Again { keep: usize },
}

/// The way in which `new` tokens are read after the `seen` tokens in sight.
fn next_step(seen: usize, new: usize, context: usize, cached: bool) -> Step {
    match (seen + new <= context, cached && seen > 0) {
        (true, _) => Step::Extend,
        // Dropping one token at a time would compute all others again each time.
        (false, true) => Step::Again { keep: (context / 2).max(1) },
        (false, false) => Step::Again { keep: context },
    }
}

fn tensor(ids: &[u32], device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    let shape = [1, ids.len()];
    Tensor::from_data(TensorData::new(ids, shape), device)
}

#[cfg(test)]
mod tests {
    use super::{Step, next_step};

    #[test]
    fn half_of_a_full_context_stays_beside_a_cache() {
        for (seen, new, cached, expected) in [
            (0, 8, true, Step::Extend),
            (7, 1, true, Step::Extend),
            (8, 1, true, Step::Again { keep: 4 }),
            (8, 20, true, Step::Again { keep: 4 }),
            (0, 20, true, Step::Again { keep: 8 }),
            (8, 1, false, Step::Again { keep: 8 }),
        ] {
            assert_eq!(next_step(seen, new, 8, cached), expected, "{seen} and {new}");
        }
        assert_eq!(next_step(1, 1, 1, true), Step::Again { keep: 1 });
    }
}
