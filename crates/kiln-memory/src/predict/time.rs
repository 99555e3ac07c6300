//! Estimated seconds of operations, from floating-point operations and bytes moved.

use burn::tensor::DType;

use crate::trace::{Kind, StepTrace};

use super::custom;
use super::profile::BackendProfile;
use super::sizes::Sizes;

/// Estimates seconds of the operations of a trace at one batch size.
pub(super) struct Clock<'a> {
    trace: &'a StepTrace,
    sizes: &'a Sizes,
    profile: &'a BackendProfile,
    /// The cost model of each of the trace's kinds.
    models: Vec<CostModel>,
}

/// The way in which the time of an operation follows from its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CostModel {
    /// Moves no bytes, since it only makes a view.
    View,
    /// Moves its inputs and outputs.
    Elementwise,
    Matmul,
    Conv,
    ConvBackward,
    ConvTranspose,
    /// A custom operation, which burn does not have.
    Custom,
}

impl CostModel {
    fn of(kind: &Kind) -> Self {
        match kind.short() {
            _ if kind.is_custom() => Self::Custom,
            "Reshape" | "SwapDims" | "Permute" | "Expand" | "Slice" => Self::View,
            "Matmul" => Self::Matmul,
            "Conv1d" | "Conv2d" | "Conv3d" => Self::Conv,
            name if name.starts_with("Conv") && (name.ends_with("XBackward") || name.ends_with("WeightBackward")) => {
                Self::ConvBackward
            }
            name if name.starts_with("ConvTranspose") => Self::ConvTranspose,
            _ => Self::Elementwise,
        }
    }
}

impl<'a> Clock<'a> {
    pub(super) fn new(trace: &'a StepTrace, sizes: &'a Sizes, profile: &'a BackendProfile) -> Self {
        Self { trace, sizes, profile, models: trace.graph.kinds.iter().map(CostModel::of).collect() }
    }

    /// Seconds of an operation: its computation or its memory traffic, whichever takes longer, and its launch.
    pub(super) fn seconds(&self, index: usize) -> f64 {
        let graph = &self.trace.graph;
        let operation = graph.operations[index];
        let (inputs, outputs) = (graph.inputs(operation), graph.outputs(operation));
        let model = self.models[operation.kind as usize];
        if model == CostModel::View {
            return self.profile.launch;
        }
        let read: u64 = inputs.iter().map(|input| self.sizes.bytes(input.tensor)).sum();
        let written: u64 = outputs.iter().map(|output| self.sizes.bytes(*output)).sum();
        let (multiply_adds, more_bytes) = match model {
            CostModel::Custom => custom::work(self.trace, self.sizes, index, self.profile),
            _ => (0.0, 0),
        };
        let moving = (read + written).saturating_add(more_bytes) as f64 / self.profile.bandwidth;
        if model == CostModel::Elementwise {
            return self.profile.launch + moving;
        }
        let shape = |tensor: Option<u32>| tensor.map_or(&[][..], |tensor| self.sizes.shape(tensor));
        let input = |position: usize| shape(inputs.get(position).map(|input| input.tensor));
        let product = |dims: &[usize]| dims.iter().product::<usize>() as f64;
        let out = shape(outputs.first().copied());
        let patch = || product(input(1).get(1..).unwrap_or_default());
        let work = match model {
            CostModel::Matmul => 2.0 * product(out) * input(0).last().copied().unwrap_or(1) as f64,
            // Each output element is a sum over a patch.
            CostModel::Conv => 2.0 * product(out) * patch(),
            CostModel::ConvBackward => 2.0 * product(input(2)) * patch(),
            CostModel::ConvTranspose => 2.0 * product(input(0)) * patch(),
            CostModel::Custom => 2.0 * multiply_adds,
            CostModel::View | CostModel::Elementwise => 0.0,
        };
        let dtype = inputs.first().map(|input| self.trace.tensors[input.tensor as usize].dtype);
        let flops = match dtype {
            Some(DType::F16 | DType::BF16) => self.profile.half_flops,
            _ => self.profile.flops,
        };
        self.profile.launch + moving.max(work / flops)
    }
}
