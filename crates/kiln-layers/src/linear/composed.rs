//! Linear layers with a prologue in a backend's own operations.
//!
//! Peak memory in addition to inputs and outputs: the prologue's output in the dtype of the input, `rows inputs`, and its gradient, which
//! is as large; for parameters in another dtype their copies. The products run in the dtype of the input. Multiply-adds:
//! `rows inputs outputs` in each direction and for the weight's gradient.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};
use kiln_operations::KernelBackend;

use super::Prologue;
use crate::activation::{activated, activation_gradient};
use crate::bias::bias_gradient;
use crate::composed::{cast, full};
use crate::norm::{row_norm, row_norm_backward};

/// Rows of a tile of burn's products.
const ROWS_OF_TILE: usize = 32;

/// Reshapes a tensor to a matrix whose rows are along the last dimension.
pub(super) fn matrix<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    let length = shape.last().copied().unwrap_or(1);
    B::float_reshape(tensor, Shape::new([shape.num_elements() / length.max(1), length]))
}

/// The prologue's output, and the statistics of each row if it is a norm.
fn prologue<B: KernelBackend>(
    x: FloatTensor<B>,
    [weight, bias]: [FloatTensor<B>; 2],
    prologue: Prologue,
) -> (FloatTensor<B>, Option<FloatTensor<B>>) {
    match prologue {
        Prologue::None => (x, None),
        Prologue::Norm(settings) => {
            let [h, statistics] = row_norm::<B>(x, weight, bias, settings);
            (h, Some(statistics))
        }
        Prologue::Activation(kind) => (activated::<B>(x, kind), None),
    }
}

/// The output, and the statistics of each row if the prologue is a norm.
pub(super) fn forward<B: KernelBackend>(
    x: FloatTensor<B>,
    norm: [FloatTensor<B>; 2],
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    kind: Prologue,
) -> [FloatTensor<B>; 2] {
    let (mut shape, dtype, device, outputs) = (x.shape(), x.dtype(), x.device(), weight.shape()[1]);
    let last = shape.num_dims() - 1;
    shape[last] = outputs;
    let (h, statistics) = prologue::<B>(x, norm, kind);
    // burn fuses the sums of bias and residual with the product if what it needs of the bias is there before the weight, and if no reshape
    // is between them. A product by batches is as fast if their rows fill tiles: burn's linear layer follows the same rule.
    let rank = if last > 1 && shape[last - 1].is_multiple_of(ROWS_OF_TILE) { last + 1 } else { 2 };
    let h = if rank == 2 { matrix::<B>(h) } else { h };
    let leading = |[rows, columns]: [usize; 2]| {
        let mut shape = vec![1; rank];
        (shape[rank - 2], shape[rank - 1]) = (rows, columns);
        Shape::from(shape)
    };
    let bias = cast::<B>(bias, dtype);
    let bias = (bias.shape().num_elements() > 0).then(|| B::float_reshape(bias, leading([1, outputs])));
    let (weight, inputs) = (cast::<B>(weight, dtype), h.shape()[rank - 1]);
    let y = B::float_matmul(h, B::float_reshape(weight, leading([inputs, outputs])));
    let y = match bias {
        Some(bias) => B::float_add(y, bias),
        None => y,
    };
    let y = if rank == 2 { B::float_reshape(y, shape) } else { y };
    let none = || full::<B>(Shape::new([0, 2]), 0.0, &device, DType::F32);
    [y, statistics.unwrap_or_else(none)]
}

/// The gradients of weight and bias.
pub(super) fn weight_gradient<B: KernelBackend>(
    x: FloatTensor<B>,
    norm: [FloatTensor<B>; 2],
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    kind: Prologue,
) -> [FloatTensor<B>; 2] {
    let dtype = weight.dtype();
    let (h, _) = prologue::<B>(x, norm, kind);
    let gradient = matrix::<B>(gradient);
    let of_bias = bias_gradient::<B>(gradient.clone(), dtype);
    let of_weight = B::float_matmul(B::float_transpose(matrix::<B>(h)), gradient);
    [cast::<B>(of_weight, dtype), of_bias]
}

/// The gradients of the input and of the norm's weight and bias.
pub(super) fn input_gradient<B: KernelBackend>(
    x: FloatTensor<B>,
    statistics: FloatTensor<B>,
    [norm_weight, norm_bias]: [FloatTensor<B>; 2],
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    kind: Prologue,
) -> [FloatTensor<B>; 3] {
    let (shape, dtype) = (x.shape(), x.dtype());
    let weight = cast::<B>(weight, dtype);
    let gradient = B::float_matmul(matrix::<B>(gradient), B::float_transpose(weight));
    let gradient = B::float_reshape(gradient, shape);
    match kind {
        Prologue::None => [gradient, norm_weight, norm_bias],
        Prologue::Activation(kind) => [activation_gradient::<B>(x, gradient, kind), norm_weight, norm_bias],
        Prologue::Norm(settings) => {
            let wanted = [true, true, norm_bias.shape().num_elements() > 0];
            row_norm_backward::<B>([x, statistics, norm_weight], gradient, settings, wanted)
        }
    }
}
