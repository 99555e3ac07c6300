//! Linear layers with a prologue as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};

use super::Prologue;
use crate::capture::{like, operation};
use crate::graph::{record, without_gradients};
use crate::norm::statistics_like;

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait LinearLayer: Backend {
    fn linear_layer(
        x: FloatTensor<Self>,
        norm_weight: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        prologue: Prologue,
    ) -> FloatTensor<Self>;
}

/// Linear layers on a backend without gradients. Parameters without elements are none. `norm`: weight and bias.
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
    fn linear_layer(
        x: FloatTensor<Self>,
        norm_weight: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        prologue: Prologue,
    ) -> FloatTensor<Self> {
        let [y, _] = Self::prologue_linear(x, [norm_weight, norm_bias], weight, bias, prologue);
        y
    }
});

impl<B: LinearKernels, C: CheckpointStrategy> LinearLayer for Autodiff<B, C> {
    fn linear_layer(
        x: FloatTensor<Self>,
        norm_weight: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        prologue: Prologue,
    ) -> FloatTensor<Self> {
        let ((x, of_x), (weight, of_weight), (bias, of_bias)) =
            (x.into_parts(), weight.into_parts(), bias.into_parts());
        let ((norm_weight, of_norm_weight), (norm_bias, of_norm_bias)) =
            (norm_weight.into_parts(), norm_bias.into_parts());
        record::<B, C, _, 5>(
            "linear",
            [of_x, of_norm_weight, of_norm_bias, of_weight, of_bias],
            |_| {
                let norm = [norm_weight, norm_bias];
                let [y, statistics] = B::prologue_linear(x.clone(), norm.clone(), weight.clone(), bias, prologue);
                (y, Some((x, statistics, norm, weight, prologue)))
            },
            |(x, statistics, norm, weight, prologue),
             gradient,
             [of_x, of_norm_weight, of_norm_bias, of_weight, of_bias]| {
                // The gradient of the weight comes first: that of the input may take the memory of the input.
                let (mut dweight, mut dbias, mut dx, mut dnorm_weight, mut dnorm_bias) = (None, None, None, None, None);
                if of_weight || of_bias {
                    let (x, statistics, weight) = (x.clone(), statistics.clone(), weight.clone());
                    let (norm, gradient) = (norm.clone(), gradient.clone());
                    let [of_weight, of_bias] =
                        B::prologue_linear_weight_backward(x, statistics, norm, weight, gradient, prologue);
                    (dweight, dbias) = (Some(of_weight), Some(of_bias));
                }
                if of_x || of_norm_weight || of_norm_bias {
                    let [of_x, of_norm_weight, of_norm_bias] =
                        B::prologue_linear_input_backward(x, statistics, norm, weight, gradient, prologue);
                    (dx, dnorm_weight, dnorm_bias) = (Some(of_x), Some(of_norm_weight), Some(of_norm_bias));
                }
                [dx, dnorm_weight, dnorm_bias, dweight, dbias]
            },
        )
    }
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

/// The kind of prologue: its scratch memory and time differ.
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
        operation("kiln::linear", vec![x, norm_weight, norm_bias, weight, bias], &[kind(prologue)], outputs)
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
        operation("kiln::linear_weight_backward", inputs, &[kind(prologue)], outputs)
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
        operation("kiln::linear_input_backward", inputs, &[kind(prologue)], outputs)
    }
}
