//! The loss of a linear output layer in CubeCL: for each chunk of rows one product gives the logits, one launch the losses and the gradient of
//! the logits, and one product each the gradients of hidden rows and weight, with sums in f32.
//!
//! Peak memory in addition to inputs and outputs: the logits of a [chunk](chunk_on_gpu) in f32, `chunk classes`, and in bf16 their gradient; for
//! f16 weights their copy in f32, `width classes`, and rows; with the weight's gradient and more than one chunk a product, `width classes`
//! in f32, in addition to the sum that is the output.

mod reduced;
mod rows;

use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::numeric::add;
use burn_cubecl::tensor::CubeTensor;
use kiln_operations::cube::empty;

use super::settings::{LossGradients, LossInputs, LossOptions, Reduction, chunk_on_gpu, kept_dtype};
use crate::columns::sums;

pub(super) use reduced::scaled;
pub(super) use rows::takes;

/// Some rows of a matrix that is contiguous, or some values of a vector.
fn part(tensor: &CubeTensor, first: usize, count: usize) -> CubeTensor {
    let mut shape = tensor.meta.shape().clone();
    let of_row = shape.num_elements() / shape[0] * tensor.dtype.size();
    let after = (shape[0] - first - count) * of_row;
    shape[0] = count;
    let handle = tensor.handle.clone().offset_start((first * of_row) as u64).offset_end(after as u64);
    CubeTensor::new_contiguous(tensor.client.clone(), tensor.device.clone(), shape, handle, tensor.dtype)
}

/// A product with sums in f32, in `dtype`, in the memory of `out` if it is given.
fn product(left: CubeTensor, right: CubeTensor, out: Option<CubeTensor>, dtype: DType) -> CubeTensor {
    let product = matmul(left, right, out, MatmulStrategy::default(), dtype);
    product.unwrap_or_else(|error| unreachable!("burn has a kernel for each product: {error:?}"))
}

fn transposed(mut matrix: CubeTensor) -> CubeTensor {
    matrix.meta.swap(0, 1);
    matrix
}

/// Adds to a sum, in its memory.
fn add_to(sum: &mut Option<CubeTensor>, next: CubeTensor) {
    *sum = Some(match sum.take() {
        Some(sum) => add(sum, next),
        None => next,
    });
}

/// The loss in f32, `[1]`, or `[rows]` without a reduction, and its wanted gradients: of the hidden rows in the dtype that is kept, of
/// weight and bias in f32. There are rows and classes.
pub(super) fn loss_and_gradients(
    inputs: LossInputs<CubeTensor, CubeTensor>,
    options: LossOptions,
    wanted: [bool; 3],
) -> (CubeTensor, LossGradients<CubeTensor>) {
    let kept = kept_dtype(inputs.hidden.dtype);
    let hidden = into_contiguous(inputs.hidden);
    let [count, width]: [usize; 2] = hidden.meta.shape().dims();
    let classes = inputs.weight.meta.shape()[1];
    let rows =
        rows::Rows::new([inputs.bias, inputs.class_weights, inputs.targets, inputs.row_weights], options, classes);
    let total = (options.reduction == Reduction::Mean).then(|| reduced::total(&rows, count));
    let weight = cast(inputs.weight, kept);
    let losses = empty(&hidden, Shape::new([count]), DType::F32);
    let of_hidden = wanted[0].then(|| empty(&hidden, Shape::new([count, width]), kept));
    let (mut of_weight, mut of_bias) = (None, None);
    let size = chunk_on_gpu(count, width, classes, kept);
    for first in (0..count).step_by(size) {
        let size = size.min(count - first);
        let hidden = cast(part(&hidden, first, size), kept);
        let logits = product(hidden.clone(), weight.clone(), None, DType::F32);
        let of_logits = wanted.contains(&true).then_some(kept);
        let of_logits = rows.losses(logits, first, part(&losses, first, size), total.as_ref(), of_logits);
        let Some(of_logits) = of_logits else { continue };
        if let Some(of_hidden) = &of_hidden {
            let out = part(of_hidden, first, size);
            let _written = product(of_logits.clone(), transposed(weight.clone()), Some(out), kept);
        }
        if wanted[2] {
            add_to(&mut of_bias, sums(of_logits.clone(), DType::F32));
        }
        if wanted[1] {
            // Without padding, which burn gives the rows of a product.
            let out = empty(&of_logits, Shape::new([width, classes]), DType::F32);
            add_to(&mut of_weight, product(transposed(hidden), of_logits, Some(out), DType::F32));
        }
    }
    let loss = match options.reduction {
        Reduction::None => losses,
        _ => reduced::sum(losses, total),
    };
    (loss, LossGradients { hidden: of_hidden, weight: of_weight, bias: of_bias })
}
