//! Linear layers with a prologue as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};

use super::{LinearParameters, Prologue};
use crate::graph::without_gradients;
use crate::norm::statistics_like;
use kiln_operations::record;
use kiln_operations::{like, operation};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait LinearLayer: Backend {
    fn linear_layer(x: FloatTensor<Self>, #[extension_type] parameters: LinearParameters<Self>) -> FloatTensor<Self>;
}

/// Linear layers on a backend without gradients. A missing parameter has no elements. `norm` has weight and bias.
pub(crate) trait LinearKernels: Backend {
    /// The output, and the [statistics](crate::norm) of each row if the prologue is a norm.
    fn prologue_linear(
        x: FloatTensor<Self>,
        norm: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 2] {
        super::composed::forward::<Self>(x, norm, weight, bias, prologue)
    }

    /// The gradients of weight and bias.
    fn prologue_linear_weight_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        norm: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 2] {
        let _ = statistics;
        super::composed::weight_gradient::<Self>(x, norm, weight, gradient, prologue)
    }

    /// The gradients of the input and of the norm's weight and bias.
    fn prologue_linear_input_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        norm: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 3] {
        super::composed::input_gradient::<Self>(x, statistics, norm, weight, gradient, prologue)
    }
}

without_gradients!(LinearLayer, LinearKernels {
    fn linear_layer(x: FloatTensor<Self>, parameters: LinearParameters<Self>) -> FloatTensor<Self> {
        let LinearParameters { norm_weight, norm_bias, weight, bias, prologue } = parameters;
        let [y, _] = Self::prologue_linear(x, [norm_weight, norm_bias], weight, bias, prologue);
        y
    }
});

impl<B: LinearKernels, C: CheckpointStrategy> LinearLayer for Autodiff<B, C> {
    fn linear_layer(x: FloatTensor<Self>, parameters: LinearParameters<Self>) -> FloatTensor<Self> {
        let (x, of_x) = x.into_parts();
        let (parameters, [of_norm_weight, of_norm_bias, of_weight, of_bias]) = parameters.into_parts();
        let LinearParameters { norm_weight, norm_bias, weight, bias, prologue } = parameters;
        record::<B, C, _, 5>(
            "linear",
            [of_x, of_norm_weight, of_norm_bias, of_weight, of_bias],
            |_| {
                let norm = [norm_weight, norm_bias];
                let [y, statistics] = B::prologue_linear(x.clone(), norm.clone(), weight.clone(), bias, prologue);
                (y, Some(LinearSaved { x, statistics, norm, weight, prologue }))
            },
            gradients::<B>,
        )
    }
}

/// The tensors that the backward pass needs.
#[derive(Clone, Debug)]
pub(crate) struct LinearSaved<T> {
    pub(crate) x: T,
    /// The statistics of the rows of `x`.
    pub(crate) statistics: T,
    /// The norm's weight and bias.
    pub(crate) norm: [T; 2],
    pub(crate) weight: T,
    pub(crate) prologue: Prologue,
}

/// The gradients of input, norm's weight and bias, and the layer's weight and bias.
pub(crate) fn gradients<B: LinearKernels>(
    saved: LinearSaved<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    [for_x, for_norm_weight, for_norm_bias, for_weight, for_bias]: [bool; 5],
) -> [Option<FloatTensor<B>>; 5] {
    // The gradient of the weight comes first, since the gradient of the input may be written over the input.
    let (mut of_x, mut of_norm_weight, mut of_norm_bias, mut of_weight, mut of_bias) = (None, None, None, None, None);
    if for_weight || for_bias {
        let (LinearSaved { x, statistics, norm, weight, prologue }, gradient) = (saved.clone(), gradient.clone());
        let gradients = B::prologue_linear_weight_backward(x, statistics, norm, weight, gradient, prologue);
        [of_weight, of_bias] = gradients.map(Some);
    }
    if for_x || for_norm_weight || for_norm_bias {
        let LinearSaved { x, statistics, norm, weight, prologue } = saved;
        let gradients = B::prologue_linear_input_backward(x, statistics, norm, weight, gradient, prologue);
        [of_x, of_norm_weight, of_norm_bias] = gradients.map(Some);
    }
    [of_x, of_norm_weight, of_norm_bias, of_weight, of_bias]
}

#[cfg(feature = "flex")]
impl LinearKernels for burn::backend::Flex {
    fn prologue_linear(
        x: FloatTensor<Self>,
        norm: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 2] {
        super::flex::forward(&x, norm.each_ref(), &weight, &bias, prologue)
    }

    fn prologue_linear_weight_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        norm: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 2] {
        super::flex::weight_gradient(&x, &statistics, norm.each_ref(), &weight, &gradient, prologue)
    }

    fn prologue_linear_input_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        norm: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 3] {
        super::flex::input_gradient(x, &statistics, norm.each_ref(), &weight, &gradient, prologue)
    }
}

/// The kind of prologue. Scratch memory and time depend on it.
fn kind(prologue: Prologue) -> i64 {
    match prologue {
        Prologue::None => 0,
        Prologue::Norm(_) => 1,
        Prologue::Activation(_) => 2,
    }
}

impl LinearKernels for Capture {
    fn prologue_linear(
        x: FloatTensor<Self>,
        [norm_weight, norm_bias]: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 2] {
        let mut shape = x.shape();
        let last = shape.num_dims() - 1;
        shape[last] = weight.shape()[1];
        let statistics = match prologue {
            Prologue::Norm(_) => statistics_like(&x),
            _ => (Shape::new([0, 2]), DType::F32),
        };
        let outputs = [(shape, x.dtype()), statistics];
        operation(&super::cost::FORWARD, vec![x, norm_weight, norm_bias, weight, bias], &[kind(prologue)], outputs)
    }

    fn prologue_linear_weight_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        [norm_weight, norm_bias]: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 2] {
        let outputs = [like(&weight), (Shape::new([weight.shape()[1]]), weight.dtype())];
        let inputs = vec![x, statistics, norm_weight, norm_bias, weight, gradient];
        operation(&super::cost::WEIGHT_BACKWARD, inputs, &[kind(prologue)], outputs)
    }

    fn prologue_linear_input_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        [norm_weight, norm_bias]: [FloatTensor<Self>; 2],
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        prologue: Prologue,
    ) -> [FloatTensor<Self>; 3] {
        let outputs = [like(&x), like(&norm_weight), like(&norm_weight)];
        let inputs = vec![x, statistics, norm_weight, norm_bias, weight, gradient];
        operation(&super::cost::INPUT_BACKWARD, inputs, &[kind(prologue)], outputs)
    }
}
