//! Any decoder of this crate, chosen when a program runs.
// B batch, T time, C width, V vocabulary

use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, Param};
use burn::store::{KeyRemapper, ModuleAdapter};
use burn::tensor::{Device, Int, Tensor};
use kiln_layers::RowParts;

use super::blocks::{DecoderBlock, DecoderHalf};
use super::parts::DecoderParts;
use crate::Error;
use crate::cache::{DecoderCache, KeysValues, Position};
use crate::gpt::Gpt;
use crate::llama::Llama;
use crate::safetensors::{SafetensorsModel, Values};

/// A causal language model. Build one with [`DecoderConfig`](crate::DecoderConfig).
///
/// The paths of its parameters are those of the network itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a program has few models")]
#[allow(missing_docs, reason = "named after the networks")]
pub enum Decoder {
    Gpt(Gpt),
    Llama(Llama),
}

/// Evaluates `$do` on the network inside of a [`Decoder`].
macro_rules! each {
    ($decoder:expr, $model:ident => $do:expr) => {
        match $decoder {
            Decoder::Gpt($model) => $do,
            Decoder::Llama($model) => $do,
        }
    };
}

/// Evaluates `$do`, which makes a network of the same kind, and wraps its result in the [`Decoder`] again.
macro_rules! changed {
    ($decoder:expr, $model:ident => $do:expr) => {
        match $decoder {
            Decoder::Gpt($model) => Decoder::Gpt($do),
            Decoder::Llama($model) => Decoder::Llama($do),
        }
    };
}

impl From<&Gpt> for Decoder {
    /// A handle to the same parameters.
    fn from(model: &Gpt) -> Self {
        Self::Gpt(model.clone())
    }
}

impl From<&Llama> for Decoder {
    /// A handle to the same parameters.
    fn from(model: &Llama) -> Self {
        Self::Llama(model.clone())
    }
}

impl From<&Self> for Decoder {
    /// A handle to the same parameters.
    fn from(model: &Self) -> Self {
        model.clone()
    }
}

impl Decoder {
    /// Longest sequence that the model can read, in tokens.
    pub fn context(&self) -> usize {
        each!(self, model => model.context())
    }

    /// Number of distinct tokens.
    pub fn vocab(&self) -> usize {
        each!(self, model => model.vocab())
    }

    /// The device of the embedding. Token ids must be on it.
    pub(super) fn device(&self) -> Device {
        each!(self, model => model.device())
    }

    /// The parameter of the token embedding, if it is the output layer's too, and if its rows can be read some at a time: with kiln-layers'
    /// operations.
    pub fn words(&self) -> Option<&Param<Tensor<2>>> {
        each!(self, model => model.words())
    }

    /// Turns token ids `[B, T]`, each below `vocab`, into the input of the first block: `[B, T, C]` in the dtype that the block computes in.
    /// The rows of the [words](Self::words), if they are given, are used instead of the parameter's value.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn embed_by_rows(&self, rows: Option<Arc<dyn RowParts>>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        each!(self, model => model.embed_by_rows(rows, ids_bt))
    }

    /// The decoder blocks, first to last. They are handles to this model's parameters, not copies.
    pub fn blocks(&self) -> Vec<DecoderBlock> {
        match self {
            Self::Gpt(model) => model.blocks().into_iter().map(DecoderBlock::Gpt).collect(),
            Self::Llama(model) => model.blocks().into_iter().map(DecoderBlock::Llama).collect(),
        }
    }

    /// The [halves](DecoderBlock::halves) of all blocks, in the order in which they run, for a chain whose elements are to be small. `None` for a
    /// model with dropout: where recomputed blocks draw random numbers one by one, the masks of a half would be others than those of the block.
    pub fn halves(&self) -> Option<Vec<DecoderHalf>> {
        match self {
            Self::Gpt(model) => Some(model.halves()?.into_iter().map(DecoderHalf::Gpt).collect()),
            Self::Llama(model) => Some(model.halves().into_iter().map(DecoderHalf::Llama).collect()),
        }
    }

    /// Turns the output of the last block `[B, T, C]` into rows `[B T, C]`, and returns them with the output layer's weight `[C, V]`.
    /// Their product is the logits. It is for losses that need the logits of only a few rows at a time.
    pub fn output(&self, x_btc: Tensor<3>) -> (Tensor<2>, Tensor<2>) {
        each!(self, model => model.output(x_btc))
    }

    /// Turns the output of the last block `[B, T, C]` into logits `[B, T, V]`.
    pub fn head(&self, x_btc: Tensor<3>) -> Tensor<3> {
        each!(self, model => model.head(x_btc))
    }

    /// The mean cross-entropy of the output of the last block `[B, T, C]` against the targets `[B, T]`, a tensor of one element in f32. The rows
    /// of the [words](Self::words), if they are given, are used instead of the parameter's value.
    pub fn loss_by_rows(
        &self,
        rows: Option<Arc<dyn RowParts>>,
        x_btc: Tensor<3>,
        targets_bt: Tensor<2, Int>,
    ) -> Tensor<1> {
        each!(self, model => model.loss_by_rows(rows, x_btc, targets_bt))
    }

    /// Works as [`loss_by_rows`](Self::loss_by_rows), over the targets that are learned: those that are not
    /// [`NOT_LEARNED`](crate::NOT_LEARNED). Without a target that is learned it is NaN.
    pub fn learned_loss_by_rows(
        &self,
        rows: Option<Arc<dyn RowParts>>,
        x_btc: Tensor<3>,
        targets_bt: Tensor<2, Int>,
    ) -> Tensor<1> {
        each!(self, model => model.loss_over(false, rows, x_btc, targets_bt))
    }

    /// Turns token ids `[B, T]` into logits `[B, T, V]` of the token after each.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn forward(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        each!(self, model => model.forward(ids_bt))
    }

    /// Turns token ids `[B, T]` into the output of the last block, `[B, T, C]`.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn features(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        each!(self, model => model.features(ids_bt))
    }

    /// Turns token ids `[B, T]` that follow the tokens in `cache` into the output of the last block, `[B, T, C]`. Up to rounding, it
    /// equals the output of [`features`](Self::features) for all tokens together. The keys and values of the new tokens are added to the
    /// cache.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for no tokens, for more tokens than the context has room for, and for another number of texts than in the
    /// cache.
    pub fn extend(&self, ids_bt: Tensor<2, Int>, cache: &mut DecoderCache) -> Result<Tensor<3>, Error> {
        self.extend_in(&DecoderParts::in_memory(), self.context(), ids_bt, cache)
    }

    /// Works as [`extend`](Self::extend), with parameters that come in when they are used, and with room for `context` tokens.
    pub(super) fn extend_in(
        &self,
        parts: &DecoderParts<'_>,
        context: usize,
        ids_bt: Tensor<2, Int>,
        cache: &mut DecoderCache,
    ) -> Result<Tensor<3>, Error> {
        let ([b, t], past) = (ids_bt.dims(), cache.tokens());
        let invalid = |size, value, expected| Err(Error::InvalidInput { size, value, expected });
        if t == 0 || past + t > context {
            let expected = format!("1 to {} after {past} of {context}", context.saturating_sub(past));
            return invalid("number of tokens", t, expected);
        }
        if let Some(texts) = cache.texts().filter(|texts| *texts != b) {
            return invalid("number of texts", b, format!("{texts} as in the cache"));
        }
        let (at, blocks) = (Position { past, context }, self.blocks());
        cache.blocks.resize_with(blocks.len(), KeysValues::default);
        let mut x_btc = each!(self, model => model.embed_after(past, parts.words.clone(), ids_bt));
        for (block, own) in blocks.iter().zip(&mut cache.blocks) {
            for half in block.halves() {
                x_btc = parts.half(&half)?.extend(x_btc, own, at);
            }
        }
        cache.advance(b, t);
        Ok(x_btc)
    }

    /// Works as [`features`](Self::features), with parameters that come in when they are used.
    pub(super) fn features_in(&self, parts: &DecoderParts<'_>, ids_bt: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
        let x_btc = self.embed_by_rows(parts.words.clone(), ids_bt);
        let halves: Vec<DecoderHalf> = self.blocks().iter().flat_map(DecoderBlock::halves).collect();
        halves.iter().try_fold(x_btc, |x, half| Ok(parts.half(half)?.forward(x)))
    }

    /// Works as [`head`](Self::head), with the words of `parts`.
    pub(super) fn head_in(&self, parts: &DecoderParts<'_>, x_btc: Tensor<3>) -> Tensor<3> {
        let Some(words) = &parts.words else { return self.head(x_btc) };
        let x_btc = each!(self, model => model.last_norm(x_btc));
        let (device, dtype) = (x_btc.device(), x_btc.dtype());
        let logits = (0..words.count()).map(|part| {
            let rows_vc = Tensor::<2>::from_data(words.read(part), &device).cast(dtype);
            x_btc.clone().matmul(rows_vc.transpose().unsqueeze())
        });
        Tensor::cat(logits.collect(), 2)
    }
}

/// Delegates to the network inside. burn's derive would put the network's name before the path of each parameter.
impl Module for Decoder {
    fn collect_devices(&self, devices: Devices) -> Devices {
        each!(self, model => model.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        changed!(self, model => model.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        changed!(self, model => model.to_device(device))
    }

    fn train(self) -> Self {
        changed!(self, model => model.train())
    }

    fn valid(&self) -> Self {
        changed!(self, model => model.valid())
    }

    fn materialize(self) -> Self {
        changed!(self, model => model.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        each!(self, model => model.visit(visitor));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        changed!(self, model => model.map(mapper))
    }
}

impl SafetensorsModel for Decoder {
    fn reading(&self) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        each!(self, model => model.reading())
    }

    fn writing(&self, values: Values) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        each!(self, model => model.writing(values))
    }

    fn head_path(&self) -> Option<&'static str> {
        each!(self, model => model.head_path())
    }
}
