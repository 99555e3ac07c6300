//! Whether the gradients of a batch have the same bits in any division into micro-batches.

use std::collections::BTreeSet;
use std::fmt;

use super::step_trace::{StepTrace, TraceRole};

/// Operations of burn that compute each sample by itself, whatever its place. Others than these, slices of all samples and products are taken
/// to mix samples.
const BY_SAMPLE: [&str; 19] = [
    "Add",
    "AddScalar",
    "Sub",
    "SubScalar",
    "Neg",
    "Exp",
    "Log",
    "Sqrt",
    "Tanh",
    "Cast",
    "IntoFloat",
    "Reshape",
    "SwapDims",
    "Permute",
    "Zeros",
    "Full",
    "Ones",
    "Empty",
    "Init",
];

/// Products and quotients by elements.
const SCALES: [&str; 4] = ["Mul", "MulScalar", "Div", "DivScalar"];

/// What makes the bits of a batch depend on how it is divided into micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mixes {
    /// The forward pass draws random numbers for each sample from the generator of the device.
    Random,
    /// An operation may compute a sample in another way in another batch, or sums over samples in another order.
    Operation {
        /// The operation.
        name: String,
        /// The module or parameter, or nothing if it is not known.
        path: String,
    },
    /// The gradient of this parameter is not added to its sum one row after the other.
    Parameter(String),
    /// Several operations use this parameter, whose gradients have one sum where it is in a store.
    Shared(String),
    /// Something of this name is attached to this parameter, and may change with each micro-batch.
    Attached {
        /// Its name.
        name: String,
        /// The parameter.
        path: String,
    },
    /// The step cannot be recorded with sums in the order of rows, for this reason.
    Unrecorded(String),
}

impl fmt::Display for Mixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => write!(f, "the model draws random numbers for each sample, as burn's dropout does"),
            Self::Operation { name, path } if path.is_empty() => write!(f, "{name} depends on the micro-batch"),
            Self::Operation { name, path } => write!(f, "{name} of {path} depends on the micro-batch"),
            Self::Parameter(path) => write!(f, "the gradient of {path} is added up by micro-batches"),
            Self::Shared(path) => write!(f, "several layers use {path}, and a store has one sum of its gradients"),
            Self::Attached { name, path } => write!(f, "{name} of {path} may change with each micro-batch"),
            Self::Unrecorded(reason) => write!(f, "the step cannot be recorded row by row: {reason}"),
        }
    }
}

impl StepTrace {
    /// Why another division of a batch into micro-batches may change bits. `None` if it cannot, for a step that was recorded
    /// [in order](crate::StepOptions::in_order).
    pub fn mixes_samples(&self) -> Option<Mixes> {
        if (self.phases[0]..self.phases[1]).any(|index| self.is_random(index) && !self.is_by_sample(index)) {
            return Some(Mixes::Random);
        }
        let of_samples = self.depends_on_samples();
        let mixes = |index: &usize| of_samples[*index] && !self.is_by_sample(*index);
        if let Some(index) = (self.phases[0]..self.phases[2]).find(mixes) {
            let outputs = self.graph.outputs_at(index);
            let path = outputs.iter().find_map(|output| self.path_of(*output as usize)).unwrap_or_default();
            return Some(Mixes::Operation {
                name: self.graph.kind_at(index).short().to_owned(),
                path: path.to_owned(),
            });
        }
        self.apart.first().cloned().map(Mixes::Parameter)
    }

    /// Paths of the parameters that several operations use, of a step that was recorded [in order](crate::StepOptions::in_order).
    pub fn shared_parameters(&self) -> &BTreeSet<String> {
        &self.shared
    }

    /// Which operations read or make something of the samples. Others compute the same in every micro-batch, as norms of weights.
    fn depends_on_samples(&self) -> Vec<bool> {
        let grown = |tensor: u32| self.dims(tensor).iter().any(grows);
        let mut depends: Vec<bool> = (0..self.tensors.len() as u32)
            .map(|tensor| grown(tensor) || self.tensors[tensor as usize].role == TraceRole::Input)
            .collect();
        let of_operation = |index| {
            let (inputs, outputs) = (self.graph.inputs_at(index), self.graph.outputs_at(index));
            let any = inputs
                .iter()
                .map(|input| input.tensor)
                .chain(outputs.iter().copied())
                .any(|tensor| depends[tensor as usize]);
            for output in outputs {
                depends[*output as usize] |= any;
            }
            any
        };
        (0..self.phases[2]).map(of_operation).collect()
    }

    /// Whether a tensor is one integer.
    fn is_seed(&self, tensor: u32) -> bool {
        let dtype = self.tensors[tensor as usize].dtype;
        (dtype.is_int() || dtype.is_uint()) && self.dims(tensor) == [[1, 1]]
    }

    fn is_random(&self, index: usize) -> bool {
        self.graph.kind_at(index).name.contains("Random")
    }

    /// Whether an operation computes each sample by itself.
    fn is_by_sample(&self, index: usize) -> bool {
        let kind = self.graph.kind_at(index).short();
        let inputs = || self.graph.inputs_at(index).iter().map(|input| self.dims(input.tensor));
        let mut outputs = self.graph.outputs_at(index).iter().map(|output| self.dims(*output));
        if kiln_operations::cost::of(kind).is_some_and(|cost| cost.by_sample) {
            // Rows, groups and lengths are along other dimensions than the samples. A seed goes with the numbers of samples, which are
            // those of rows only if each sample is a row.
            let by_number = self.graph.inputs_at(index).iter().any(|input| self.is_seed(input.tensor));
            let numbered = inputs().next().is_some_and(|dims| dims.first() == Some(&self.batches));
            return inputs().all(|dims| !dims.iter().skip(1).any(grows)) && (numbered || !by_number);
        }
        match kind {
            // The same numbers for all samples.
            _ if self.is_random(index) => !outputs.any(|dims| dims.iter().any(grows)),
            // All samples.
            "Slice" => inputs().zip(outputs).all(|(from, to)| from.iter().zip(to).all(|(a, b)| !grows(a) || a == b)),
            // A factor of the loss is rounded with the weight of the micro-batch.
            kind if SCALES.contains(&kind) && index < self.phases[1] => {
                !outputs.any(|dims| dims.iter().all(|dim| *dim == [1, 1]))
            }
            kind => BY_SAMPLE.contains(&kind) || SCALES.contains(&kind),
        }
    }

    fn dims(&self, tensor: u32) -> &[[usize; 2]] {
        &self.shapes[self.tensors[tensor as usize].shape as usize]
    }
}

/// Whether a dimension grows with the batch.
fn grows(dim: &[usize; 2]) -> bool {
    dim[0] != dim[1]
}
