//! Options of attention: masks, dropout and scale.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use super::terms::{Settings, Sizes, Terms};
use crate::check::same_size;
use crate::error::Error;

/// A mask by position: the keys that a query attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mask {
    /// All keys.
    #[default]
    None,
    /// Keys up to the query's own position. The last query is at the position of the last key: query `i` of `time` sees key `j` of `keys`
    /// if `j <= i + keys - time`, as in FlashAttention 2.1 and in torch's `causal_lower_right`. With as many keys as queries, as in
    /// training, this equals torch's `is_causal`.
    Causal,
    /// As [`Causal`](Self::Causal), and of these keys only so many newest ones, that of the query itself among them: the sliding window of
    /// Mistral (Jiang et al. 2023). Nothing is computed for blocks of keys that lie wholly before the window.
    Window(usize),
}

/// The seed of a dropout mask: a number, or an integer tensor `[1]`, which stays on its device.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "one exists for each call")]
pub enum DropoutSeed {
    /// A number.
    Number(u64),
    /// A tensor of one integer.
    Tensor(Tensor<1, Int>),
}

impl From<u64> for DropoutSeed {
    fn from(seed: u64) -> Self {
        Self::Number(seed)
    }
}

impl From<Tensor<1, Int>> for DropoutSeed {
    fn from(seed: Tensor<1, Int>) -> Self {
        Self::Tensor(seed)
    }
}

impl DropoutSeed {
    fn into_tensor(self, device: &Device) -> Tensor<1, Int> {
        match self {
            Self::Number(seed) => {
                Tensor::from_data(TensorData::new(vec![seed.cast_signed()], [1]), (device, DType::I64))
            }
            Self::Tensor(seed) => seed,
        }
    }
}

/// Masks, dropout and scale of attention. All masks apply together: a query attends to the keys that no mask hides. If all keys are
/// hidden from a query, its result is zeros and no gradient flows through it.
///
/// ```
/// use kiln_layers::{AttentionOptions, Mask};
///
/// let padded_decoder = AttentionOptions::new().with_mask(Mask::Causal).with_key_lengths(vec![17, 64]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    mask: Mask,
    key_lengths: Option<Vec<usize>>,
    masked: Option<Tensor<4, Bool>>,
    dropout: Option<(f64, DropoutSeed)>,
    scale: Option<f64>,
}

impl From<Mask> for AttentionOptions {
    fn from(mask: Mask) -> Self {
        Self { mask, ..Self::default() }
    }
}

impl AttentionOptions {
    /// No mask, no dropout, and the scale 1 / sqrt(depth).
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the mask by position.
    pub fn with_mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Sets the number of keys of each sample that are not padding. The keys after them are hidden, and nothing is computed for them.
    pub fn with_key_lengths(mut self, lengths: Vec<usize>) -> Self {
        self.key_lengths = Some(lengths);
        self
    }

    /// Hides the pairs of query and key for which `masked` is true, as burn's `attention` does. It is `[batch, heads, time, keys]`, where
    /// each dimension may be 1 instead: `[batch, 1, 1, keys]` is a padding mask.
    pub fn with_masked(mut self, masked: Tensor<4, Bool>) -> Self {
        self.masked = Some(masked);
        self
    }

    /// Sets each attention weight to zero with probability `rate`, and divides the others by `1 - rate` (Srivastava et al. 2014). The
    /// random numbers depend only on seed, sample, head, query and key. The CPU device computes them by Philox 4x32-10 (Salmon et al.
    /// 2011), other devices by a simpler function. The backward pass computes them again, and nothing is kept.
    pub fn with_dropout(mut self, rate: f64, seed: impl Into<DropoutSeed>) -> Self {
        self.dropout = Some((rate, seed.into()));
        self
    }

    /// Sets the factor of the scores. Without it, the factor is 1 / sqrt(depth).
    pub fn with_scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Whether the options have dropout.
    pub(super) fn drops(&self) -> bool {
        self.dropout.is_some()
    }

    /// Checks the options against the sizes of a call.
    pub(super) fn checked(self, sizes: Sizes, device: &Device) -> Result<Terms<Dispatch>, Error> {
        let Sizes { samples, heads, time, keys, depth, .. } = sizes;
        if let Some(lengths) = &self.key_lengths {
            let (left, right) = ("the number of key lengths", "the number of samples");
            same_size((left, lengths.len()), (right, samples))?;
            if let Some(length) = lengths.iter().find(|length| **length > keys) {
                let expected = "at most the number of keys";
                return Err(setting("a key length", format!("{length} of {keys} keys"), expected));
            }
        }
        if let Some(masked) = &self.masked {
            let names = [
                ("dimension 0 of the boolean mask, if not 1,", "the number of samples"),
                ("dimension 1 of the boolean mask, if not 1,", "the number of heads"),
                ("dimension 2 of the boolean mask, if not 1,", "the number of queries"),
                ("dimension 3 of the boolean mask, if not 1,", "the number of keys"),
            ];
            for ((left, right), (got, size)) in
                names.into_iter().zip(masked.dims().into_iter().zip([samples, heads, time, keys]))
            {
                if got != 1 {
                    same_size((left, got), (right, size))?;
                }
            }
        }
        if self.mask == Mask::Window(0) {
            return Err(setting("the window of keys", "0".to_string(), "a positive number"));
        }
        let scale = self.scale.unwrap_or_else(|| 1.0 / (depth as f64).sqrt());
        if !(scale as f32).is_finite() {
            return Err(setting("the scale", scale.to_string(), "a finite number in f32"));
        }
        let dropout = self.dropout.as_ref().map_or(0.0, |(rate, _)| *rate);
        if !(0.0..1.0).contains(&dropout) {
            return Err(setting("the dropout rate", dropout.to_string(), "a number from 0, less than 1"));
        }
        if let Some((_, DropoutSeed::Tensor(seed))) = &self.dropout {
            same_size(("the length of the dropout seed", seed.dims()[0]), ("one seed", 1))?;
        }
        let masked = self.masked.map(Tensor::into_dispatch);
        let seed = self.dropout.filter(|(rate, _)| *rate > 0.0);
        let seed = seed.map(|(_, seed)| seed.into_tensor(device).into_dispatch());
        let settings = Settings {
            heads,
            causal: self.mask != Mask::None,
            window: match self.mask {
                Mask::Window(window) if window < keys => Some(window),
                _ => None,
            },
            key_lengths: self.key_lengths.map(Arc::from),
            scale: scale as f32,
            dropout,
            first_sample: kiln_operations::first_sample(),
        };
        Ok(Terms { masked, seed, settings })
    }
}

/// An error about a setting.
pub(super) fn setting(name: &'static str, value: String, expected: &'static str) -> Error {
    Error::InvalidSetting { name, value, expected }
}
