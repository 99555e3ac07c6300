//! The task of language modelling.
// B batch, T time, C width

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::{Device, Int, Tensor};
use kiln_checkpointing::{TensorMap, Tensors};
use kiln_compression::Teacher;
use kiln_data::{TokenBatch, Tokenizer, TokenizerKind};
use kiln_layers::RowParts;
use kiln_models::{Decoder, DecoderBlock, DecoderConfig, DecoderHalf, NOT_LEARNED};
use kiln_training::{Goal, Metric, Metrics, Pass, Task, perplexity};

use super::settings::{GptSettings, Text};
use crate::pipelines::pipeline::{Chained, Kind, Pipeline};
use crate::pipelines::teacher::TeacherModel;
use crate::usage::Usage;

/// The task of language modelling: cross-entropy of the next token, over all of a text or over the learned tokens of records. Evaluation also reports it per byte of text, which does not depend on
/// the tokenizer.
pub struct NextToken {
    /// The number of bytes of each token.
    byte_lengths: Vec<u32>,
    /// A model whose probabilities are a target beside the text.
    teacher: Option<TeacherModel<Decoder>>,
}

/// The targets of the loss.
#[derive(Clone)]
pub struct Targets {
    next_bt: Tensor<2, Int>,
    /// Whether all of them are learned.
    all: bool,
    taught: Option<Teacher>,
}

impl Tensors for Targets {
    fn map<M: TensorMap>(self, map: &mut M) -> Self {
        let taught = self.taught.map(|taught| match taught {
            Teacher::Linear { hidden, weight } => {
                Teacher::Linear { hidden: map.float(hidden), weight: map.float(weight) }
            }
            taught => taught, // no other one is made here
        });
        Self { next_bt: map.int(self.next_bt), taught, ..self }
    }
}

impl Task for NextToken {
    type Model = Decoder;
    type Batch = TokenBatch;

    fn loss(&self, pass: &Pass<'_, Decoder>, batch: &TokenBatch) -> Tensor<1> {
        match &self.teacher {
            Some(_) => self.chain_loss(pass, batch),
            None => mean_loss(pass, batch),
        }
    }

    fn resident_bytes(&self) -> u64 {
        self.teacher.as_ref().map_or(0, TeacherModel::bytes)
    }

    fn metrics(&self, pass: &Pass<'_, Decoder>, batch: &TokenBatch) -> Metrics {
        let mean = mean_loss(pass, batch);
        let bytes: u32 = batch.target_ids().into_iter().map(|id| self.byte_lengths[id as usize]).sum();
        let tokens = batch.targets();
        let nats = mean * tokens as f64;
        let per_byte =
            Metric::mean(nats.clone(), (bytes as usize).max(1)).finished_by(|nats| nats / std::f64::consts::LN_2);
        Metrics::new()
            .with("bits_per_byte", per_byte)
            .with("perplexity", Metric::mean(nats.clone(), tokens).finished_by(perplexity))
            .with("val_loss", Metric::mean(nats, tokens))
    }
}

impl Pipeline for NextToken {
    type Data = Text;
    type Config = DecoderConfig;

    const KIND: Kind = Kind { tables: &["text"], compresses: true, command: "gpt", model: "a decoder of text" };
    const METRIC: &'static str = "bits_per_byte";
    const GOAL: Goal = Goal::Lowest;
}

impl Chained for NextToken {
    type Block = DecoderBlock;
    type X = Tensor<3>;
    type Target = Targets;

    fn begin(&self, model: &Decoder, batch: &TokenBatch, device: &Device) -> (Tensor<3>, Targets) {
        let (inputs_bt, next_bt) = batch.to_device(NOT_LEARNED, device);
        let taught = self.teacher.as_ref().map(|teacher| {
            let model = teacher.on(device);
            let (hidden, weight) = model.output(model.features(inputs_bt.clone()));
            Teacher::Linear { hidden, weight }
        });
        (model.embed_by_rows(None, inputs_bt), Targets { next_bt, all: batch.learns_all(), taught })
    }

    fn blocks(&self, model: &Decoder) -> Vec<DecoderBlock> {
        model.blocks()
    }

    fn forward(block: &DecoderBlock, x_btc: Tensor<3>) -> Tensor<3> {
        block.forward(x_btc)
    }

    fn end(&self, model: &Decoder, x_btc: Tensor<3>, Targets { next_bt, all, taught }: Targets) -> Tensor<1> {
        match (&self.teacher, taught) {
            (Some(teacher), Some(taught)) => {
                let (hidden, weight) = model.output(x_btc.clone());
                let taught = teacher.loss.forward_linear(hidden, weight, taught);
                // The vocabularies were compared when the teacher was loaded.
                let taught = taught.unwrap_or_else(|error| panic!("{error}"));
                taught * teacher.share + loss(model, all, None, x_btc, next_bt) * (1.0 - teacher.share)
            }
            _ => loss(model, all, None, x_btc, next_bt),
        }
    }
}

/// The mean cross-entropy of the next token. Where the model is in a store, its embedding is read by rows, and blocks run in halves.
fn mean_loss(pass: &Pass<'_, Decoder>, batch: &TokenBatch) -> Tensor<1> {
    let (inputs_bt, targets_bt) = batch.to_device(NOT_LEARNED, pass.device());
    let model = pass.model();
    let rows = model.words().and_then(|words| pass.rows(words));
    let x_btc = model.embed_by_rows(rows.clone(), inputs_bt);
    let x_btc = match model.halves().filter(|_| pass.streams()) {
        Some(halves) => pass.chain(&halves, x_btc, DecoderHalf::forward),
        None => pass.chain(&model.blocks(), x_btc, DecoderBlock::forward),
    };
    loss(model, batch.learns_all(), rows, x_btc, pass.to_device(targets_bt))
}

/// The mean cross-entropy over all targets, or over those that are learned.
fn loss(
    model: &Decoder,
    all: bool,
    rows: Option<Arc<dyn RowParts>>,
    x_btc: Tensor<3>,
    targets_bt: Tensor<2, Int>,
) -> Tensor<1> {
    match all {
        true => model.loss_by_rows(rows, x_btc, targets_bt),
        false => model.learned_loss_by_rows(rows, x_btc, targets_bt),
    }
}

impl NextToken {
    /// Returns the task with a teacher.
    pub(super) fn taught(self, teacher: Option<TeacherModel<Decoder>>) -> Self {
        Self { teacher, ..self }
    }

    /// A task for memory predictions only: metrics would need the lengths of the tokens.
    pub fn unmeasured() -> Self {
        Self { byte_lengths: vec![], teacher: None }
    }
}

/// The tokenizer and the task; the model's vocabulary must be the tokenizer's. That of a Hugging Face model may be larger.
///
/// # Errors
/// [`Usage`] for another vocabulary, and those of the tokenizer.
pub fn next_token(settings: &GptSettings) -> Result<(Tokenizer, NextToken)> {
    let tokenizer = Tokenizer::open(&settings.data.text.tokenizer)?;
    let (vocab, expected) = (settings.model.vocab(), tokenizer.vocab());
    match settings.data.text.tokenizer {
        TokenizerKind::Folder(_) if vocab < expected => {
            return Err(
                Usage(format!("model.vocab is {vocab}, expected at least {expected} as in the tokenizer")).into()
            );
        }
        TokenizerKind::Bytes | TokenizerKind::Bpe(_) if vocab != expected => {
            return Err(Usage(format!("model.vocab is {vocab}, expected {expected} as in the tokenizer")).into());
        }
        _ => {}
    }
    let byte_lengths = tokenizer.byte_lengths();
    Ok((tokenizer, NextToken { byte_lengths, teacher: None }))
}
