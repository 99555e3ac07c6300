//! The memory of a training step, predicted and measured: as text, as a page to explore, and as a picture.

mod align;
mod changes;
mod drawing;
mod figures;
mod modules;
mod page;
mod terminal;
mod text;
mod timeline;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// The predicted and measured memory of a training step, in the form of the JSON of kiln-memory's `MemoryReport`. Every field may be
/// missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryPage {
    /// The heading.
    pub title: String,
    /// Named facts about the step in order, such as model, batch and device.
    pub facts: Vec<(String, String)>,
    /// The prediction.
    pub prediction: Option<PredictedStep>,
    /// The measurement.
    pub measured: Option<MeasuredStep>,
    /// The most bytes at once over the whole run that the measured step is part of.
    pub run_peak_bytes: Option<u64>,
    /// Bytes that the step may take: the budget.
    pub limit_bytes: Option<u64>,
    /// Bytes that the program could have in all on this device.
    pub available_bytes: Option<u64>,
    /// Changes that lower the peak.
    pub suggestions: Vec<Change>,
}

/// The predicted memory of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedStep {
    /// The most bytes at once.
    pub peak_bytes: u64,
    /// Index of the operation at the peak.
    pub peak_at: usize,
    /// The peak by category.
    pub breakdown: BTreeMap<Category, u64>,
    /// The phases, in order.
    pub phases: Vec<PredictedPhase>,
    /// The operations, in order.
    pub operations: Vec<PredictedOperation>,
    /// Every buffer that is alive at some time.
    pub buffers: Vec<PredictedBuffer>,
}

/// A phase of a prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedPhase {
    /// Its name, such as `forward`.
    pub phase: String,
    /// Its first operation.
    pub first: usize,
    /// The operation after its last one.
    pub end: usize,
    /// The most bytes at once in the phase.
    pub peak_bytes: u64,
}

/// An operation of a prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedOperation {
    /// Its name, such as `Conv2d`.
    pub name: String,
    /// Bytes alive while it runs.
    pub live_bytes: u64,
    /// Estimated time in seconds.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
}

/// A piece of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedBuffer {
    /// Its size.
    pub bytes: u64,
    /// The shape of its tensor.
    pub shape: Vec<usize>,
    /// The element type of its tensor.
    pub dtype: String,
    /// Its purpose.
    pub category: Category,
    /// The path of its parameter or module, if known.
    pub path: Option<String>,
    /// The operation that made it.
    pub operation: String,
    /// Index of the first operation at which it is alive.
    pub born: usize,
    /// Index of the last operation at which it is alive.
    pub dies: usize,
}

/// The measured memory of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredStep {
    /// The most bytes at once.
    pub peak_bytes: u64,
    /// The phases, in order.
    pub phases: Vec<MeasuredPhase>,
    /// Live bytes over time.
    pub samples: Vec<MemorySample>,
}

/// A phase of a step that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPhase {
    /// Its name, such as `forward`.
    pub phase: String,
    /// Its beginning, in seconds from the beginning of the step.
    #[serde(deserialize_with = "number")]
    pub start: f64,
    /// Its end, in seconds from the beginning of the step.
    #[serde(deserialize_with = "number")]
    pub end: f64,
    /// The most bytes at once in the phase.
    pub peak_bytes: u64,
}

/// Live bytes at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Seconds from the beginning of the step.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Live bytes.
    pub bytes: u64,
}

/// A change to a step, and the peak after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// The change.
    pub name: String,
    /// The most bytes at once after the change.
    pub peak_bytes: u64,
    /// Bytes by which this peak is lower than the peak before.
    pub saved_bytes: u64,
    /// Whether the step then fits into the limit.
    pub fits: bool,
    /// Whether the peak was predicted for the changed step. Otherwise it is approximated.
    pub exact: bool,
    /// Estimated time of the changed step, as a multiple of the time before.
    pub relative_time: Option<f64>,
    /// The option that makes the change, as it is typed.
    pub option: Option<String>,
    /// A condition or an assumption.
    pub note: Option<String>,
}

/// The purpose of a buffer. In this order, categories lie upon each other from the bottom of the timeline to its top: those that stay
/// constant do not move the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// Weights, and buffers of the model such as running statistics.
    Parameter,
    /// State of the optimizer, which it keeps between steps.
    OptimizerState,
    /// Batches of the data loader, where they lie in the device's memory.
    DataLoader,
    /// Gradients of parameters, sums over micro-batches included.
    Gradient,
    /// The batch.
    Input,
    /// Tensors that are made in the forward pass and kept for the backward pass.
    Activation,
    /// Tensors that live within one phase.
    Transient,
    /// Scratch memory of kernels, and memory of the device's runtime and of the autodiff graph.
    Workspace,
}

impl Category {
    /// All categories, from the bottom of the timeline to its top.
    pub const STACK: [Self; 8] = [
        Self::Parameter,
        Self::OptimizerState,
        Self::DataLoader,
        Self::Gradient,
        Self::Input,
        Self::Activation,
        Self::Transient,
        Self::Workspace,
    ];

    /// The name of its colour, which is its name in JSON; its name for readers; its description in one sentence.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Parameter => {
                ["parameter", "parameters", "Weights and biases, and buffers such as running statistics."]
            }
            Self::OptimizerState => [
                "optimizer-state",
                "optimizer state",
                "Momentum and other values that the optimizer keeps between steps.",
            ],
            Self::DataLoader => [
                "data-loader",
                "data loader",
                "Batches that the data loader prepares, where they share the device's memory.",
            ],
            Self::Gradient => {
                ["gradient", "gradients", "Gradients of the parameters, and their sums over micro-batches."]
            }
            Self::Input => ["input", "input", "The batch."],
            Self::Activation => [
                "activation",
                "saved activations",
                "Results of the forward pass that are kept for the backward pass. Recomputing makes them fewer.",
            ],
            Self::Transient => ["transient", "transient", "Temporary tensors that live within one phase."],
            Self::Workspace => [
                "workspace",
                "workspace",
                "Scratch memory of kernels, and memory of the device runtime and the autodiff graph.",
            ],
        }
    }

    fn slug(self) -> &'static str {
        self.words()[0]
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words()[1])
    }
}

impl PredictedStep {
    /// The buffers that are alive at an operation, largest first.
    pub fn alive_at(&self, operation: usize) -> Vec<&PredictedBuffer> {
        let mut alive: Vec<_> =
            self.buffers.iter().filter(|buffer| (buffer.born..=buffer.dies).contains(&operation)).collect();
        alive.sort_by_key(|buffer| Reverse(buffer.bytes));
        alive
    }
}

impl MemoryPage {
    /// The error of the predicted peak relative to the measured one. It is negative if the prediction is too low. `None` if one of the
    /// peaks is missing or the measured one is zero.
    pub fn error(&self) -> Option<f64> {
        let predicted = self.prediction.as_ref().map(|prediction| prediction.peak_bytes);
        relative_error(predicted, self.measured.as_ref().map(|measured| measured.peak_bytes))
    }
}

/// See [`MemoryPage::error`].
fn relative_error(predicted: Option<u64>, measured: Option<u64>) -> Option<f64> {
    let (predicted, measured) = (predicted? as f64, measured? as f64);
    (measured > 0.0).then(|| predicted / measured - 1.0)
}

/// JSON has `null` for a number that is not finite.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
