//! The loss of a linear layer as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Shape};

use super::settings::{Inputs, LossGradients, LossInputs, kept_dtype};
use super::{LossOptions, Reduction};
use crate::graph::without_gradients;
use kiln_operations::{operation, record};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait LossLayer: Backend {
    /// The loss. Missing tensors have no elements.
    fn loss_layer(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        targets: IntTensor<Self>,
        class_weights: FloatTensor<Self>,
        row_weights: FloatTensor<Self>,
        options: LossOptions,
    ) -> FloatTensor<Self>;
}

/// The loss on a backend without gradients.
pub(crate) trait LossKernels: Backend {
    /// The loss in f32: `[1]`, or `[rows]` without a reduction.
    fn loss(inputs: Inputs<Self>, options: LossOptions) -> FloatTensor<Self> {
        super::composed::loss::<Self>(inputs, options)
    }

    /// The reduced loss, `[1]` in f32, and the gradients that are wanted, of hidden rows, weight and bias.
    fn loss_and_gradients(
        inputs: Inputs<Self>,
        options: LossOptions,
        wanted: [bool; 3],
    ) -> (FloatTensor<Self>, LossGradients<FloatTensor<Self>>) {
        super::composed::loss_and_gradients::<Self>(inputs, options, wanted)
    }

    /// `gradient * factor` in `dtype`, with a `factor` of one element in f32.
    fn scaled(gradient: FloatTensor<Self>, factor: FloatTensor<Self>, dtype: DType) -> FloatTensor<Self> {
        super::composed::scaled::<Self>(gradient, factor, dtype)
    }
}

without_gradients!(LossLayer, LossKernels {
    fn loss_layer(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        targets: IntTensor<Self>,
        class_weights: FloatTensor<Self>,
        row_weights: FloatTensor<Self>,
        options: LossOptions,
    ) -> FloatTensor<Self> {
        Self::loss(LossInputs { hidden, weight, bias, targets, class_weights, row_weights }, options)
    }
});

impl<B: LossKernels, C: CheckpointStrategy> LossLayer for Autodiff<B, C> {
    fn loss_layer(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        targets: IntTensor<Self>,
        class_weights: FloatTensor<Self>,
        row_weights: FloatTensor<Self>,
        options: LossOptions,
    ) -> FloatTensor<Self> {
        let wanted = [hidden.is_tracked(), weight.is_tracked(), bias.is_tracked()];
        let dtype = hidden.dtype();
        let ((hidden, of_hidden), (weight, of_weight), (bias, of_bias)) =
            (hidden.into_parts(), weight.into_parts(), bias.into_parts());
        let (class_weights, row_weights) = (class_weights.into_primitive(), row_weights.into_primitive());
        let inputs: Inputs<B> = LossInputs { hidden, weight, bias, targets, class_weights, row_weights };
        let nodes = [of_hidden, of_weight, of_bias];
        match options.reduction {
            // A row's gradient is known only in the backward pass, which computes the logits again.
            Reduction::None => record::<B, C, _, 3>(
                "linear cross-entropy",
                nodes,
                |_| (B::loss(inputs.clone(), options), Some((inputs, options, dtype))),
                |(inputs, options, dtype), gradient, wanted| {
                    let one = B::float_ones(Shape::new([1]), &gradient.device(), FloatDType::F32);
                    let row_weights = match inputs.row_weights.shape().num_elements() {
                        0 => gradient,
                        _ => B::float_mul(inputs.row_weights, gradient),
                    };
                    let options = LossOptions { reduction: Reduction::Sum, ..options };
                    let (_, gradients) = B::loss_and_gradients(LossInputs { row_weights, ..inputs }, options, wanted);
                    let LossGradients { hidden, weight, bias } = gradients;
                    [hidden, weight, bias].map(|part| part.map(|part| B::scaled(part, one.clone(), dtype)))
                },
            ),
            // The logits exist once, since their gradients are computed together with them.
            Reduction::Mean | Reduction::Sum => record::<B, C, _, 3>(
                "linear cross-entropy",
                nodes,
                |tracked| match tracked {
                    true => {
                        let (loss, gradients) = B::loss_and_gradients(inputs, options, wanted);
                        (loss, Some((gradients, dtype)))
                    }
                    false => (B::loss(inputs, options), None),
                },
                |(LossGradients { hidden, weight, bias }, dtype), factor, _| {
                    [hidden, weight, bias].map(|part| part.map(|part| B::scaled(part, factor.clone(), dtype)))
                },
            ),
        }
    }
}

#[cfg(feature = "flex")]
impl LossKernels for burn::backend::Flex {
    fn loss(inputs: Inputs<Self>, options: LossOptions) -> FloatTensor<Self> {
        super::flex::loss(&inputs, &options)
    }

    fn loss_and_gradients(
        inputs: Inputs<Self>,
        options: LossOptions,
        wanted: [bool; 3],
    ) -> (FloatTensor<Self>, LossGradients<FloatTensor<Self>>) {
        super::flex::loss_and_gradients(&inputs, &options, wanted)
    }

    fn scaled(gradient: FloatTensor<Self>, factor: FloatTensor<Self>, dtype: DType) -> FloatTensor<Self> {
        super::scale::scaled(gradient, &factor, dtype)
    }
}

/// The inputs in the order of the recorded operation.
fn listed(inputs: Inputs<Capture>) -> Vec<FloatTensor<Capture>> {
    let LossInputs { hidden, weight, bias, targets, class_weights, row_weights } = inputs;
    vec![hidden, weight, bias, targets, class_weights, row_weights]
}

impl LossKernels for Capture {
    fn loss(inputs: Inputs<Self>, options: LossOptions) -> FloatTensor<Self> {
        let length = if options.reduction == Reduction::None { inputs.hidden.shape()[0] } else { 1 };
        let output = (Shape::new([length]), DType::F32);
        let [loss] = operation(&super::settings::LOSS, listed(inputs), &[], [output]);
        loss
    }

    fn loss_and_gradients(
        inputs: Inputs<Self>,
        _options: LossOptions,
        wanted: [bool; 3],
    ) -> (FloatTensor<Self>, LossGradients<FloatTensor<Self>>) {
        // A gradient that is not wanted has no elements.
        let part = |wanted: bool, like: &FloatTensor<Self>, dtype: DType| {
            (if wanted { like.shape() } else { Shape::new([0]) }, dtype)
        };
        let outputs = [
            (Shape::new([1]), DType::F32),
            part(wanted[0], &inputs.hidden, kept_dtype(inputs.hidden.dtype())),
            part(wanted[1], &inputs.weight, DType::F32),
            part(wanted[2], &inputs.bias, DType::F32),
        ];
        let [loss, hidden, weight, bias] = operation(&super::settings::GRADIENTS, listed(inputs), &[], outputs);
        let gradients = LossGradients {
            hidden: wanted[0].then_some(hidden),
            weight: wanted[1].then_some(weight),
            bias: wanted[2].then_some(bias),
        };
        (loss, gradients)
    }

    fn scaled(gradient: FloatTensor<Self>, factor: FloatTensor<Self>, dtype: DType) -> FloatTensor<Self> {
        let output = (gradient.shape(), dtype);
        let [scaled] = operation(&super::settings::SCALE, vec![gradient, factor], &[], [output]);
        scaled
    }
}
