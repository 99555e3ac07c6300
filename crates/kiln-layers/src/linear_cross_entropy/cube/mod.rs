//! The loss of a linear output layer in CubeCL: for each chunk of rows one product gives the logits, one launch the losses and the gradient of
//! the logits, and one product each the gradients of hidden rows and weight, with sums in f32.
//!
//! Many classes are in [blocks](Blocks) of whole tiles of a product: the gradient of the hidden rows, a small matrix with a long sum, is a
//! product for each block, so that it keeps all multiprocessors busy, and no product reads rows that are not aligned. Where
//! no class is filled up, the blocks are views of the weight.
//!
//! Peak memory in addition to inputs and outputs: the logits of a [chunk](chunk_on_gpu) in f32, `chunk classes`, and in bf16 their gradient;
//! of weights that are padded or f16 a copy, `width classes`, in bf16 or f32; with the weight's gradient and more than one chunk a product,
//! `width classes` in f32, in addition to the sum that is the output.

mod blocks;
mod reduced;
mod rows;

use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::numeric::add;
use burn_cubecl::tensor::CubeTensor;
use kiln_operations::cube::empty;

use self::blocks::{is_by_class, of_classes, viewed};
use super::settings::{Blocks, LossGradients, LossInputs, LossOptions, Reduction, chunk_on_gpu, kept_dtype};
use crate::columns::{write_sum_of_parts, write_sums};

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

fn transposed(mut matrices: CubeTensor) -> CubeTensor {
    matrices.meta.swap(1, 2);
    matrices
}

/// Adds to a sum, in its memory.
fn add_to(sum: &mut Option<CubeTensor>, next: CubeTensor) {
    *sum = Some(match sum.take() {
        Some(sum) => add(sum, next),
        None => next,
    });
}

/// The sum over the rows of each class, of all blocks.
fn sums_of_classes(of_logits: &CubeTensor, blocks: Blocks) -> CubeTensor {
    let [_, rows, length]: [usize; 3] = of_logits.meta.shape().dims();
    let sums = empty(of_logits, Shape::new([blocks.classes()]), DType::F32);
    if blocks.count == 1 {
        let strides = [of_logits.meta.strides()[1], 1];
        write_sums(viewed(of_logits.clone(), [rows, length], strides), &sums);
        return sums;
    }
    for block in 0..blocks.count {
        let of_block = viewed(part(of_logits, block, 1), [rows, length], [length, 1]);
        write_sums(of_block, &part(&sums, block * length, length));
    }
    sums
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
    let blocks = Blocks::of(classes);
    let rows = rows::Rows::new(
        [inputs.bias, inputs.class_weights, inputs.targets, inputs.row_weights],
        options,
        classes,
        blocks,
    );
    let total = (options.reduction == Reduction::Mean).then(|| reduced::total(&rows, count));
    let losses = empty(&hidden, Shape::new([count]), DType::F32);
    let of_hidden = wanted[0].then(|| empty(&hidden, Shape::new([count, width]), kept));
    let (mut of_weight, mut of_bias) = (None, None);
    let by_class = is_by_class(&inputs.weight);
    let weights = of_classes(inputs.weight, blocks, kept);
    let page = hidden.client.properties().memory.max_page_size;
    let size = chunk_on_gpu([count, width, classes], wanted[1], kept, page);
    for first in (0..count).step_by(size) {
        let size = size.min(count - first);
        let hidden = cast(part(&hidden, first, size), kept);
        // burn pads the rows of what it casts.
        let strides = [hidden.meta.num_elements(), hidden.meta.strides()[0], 1];
        let hidden = viewed(hidden, [1, size, width], strides);
        let logits = match &weights[..] {
            [weight] => product(hidden.clone(), transposed(weight.clone()), None, DType::F32),
            weights => {
                let logits = empty(&hidden, Shape::new([blocks.count, size, blocks.length]), DType::F32);
                for (block, weight) in weights.iter().enumerate() {
                    let out = Some(part(&logits, block, 1));
                    let _written = product(hidden.clone(), transposed(weight.clone()), out, DType::F32);
                }
                logits
            }
        };
        let of_logits = wanted.contains(&true).then_some(kept);
        let of_logits = rows.losses(logits, first, part(&losses, first, size), total.as_ref(), of_logits);
        let Some(of_logits) = of_logits else { continue };
        if let Some(of_hidden) = &of_hidden {
            let out = part(of_hidden, first, size);
            if blocks.count == 1 {
                let out = viewed(out, [1, size, width], [size * width, width, 1]);
                let _written = product(of_logits.clone(), weights[0].clone(), Some(out), kept);
            } else {
                let parts = empty(&out, Shape::new([blocks.count, size, width]), DType::F32);
                for (index, weight) in weights.iter().enumerate() {
                    let (first, count) = (index * weight.meta.shape()[0], weight.meta.shape()[0]);
                    let out = Some(part(&parts, first, count));
                    let _written = product(part(&of_logits, first, count), weight.clone(), out, DType::F32);
                }
                let vector = if width.is_multiple_of(4) { 4 } else { 1 };
                write_sum_of_parts(parts, &out, vector);
            }
        }
        if wanted[2] {
            add_to(&mut of_bias, sums_of_classes(&of_logits, blocks));
        }
        if wanted[1] {
            // Without padding, which burn gives the rows of a product.
            let in_order = |shape| Some(empty(&of_logits, Shape::new(shape), DType::F32));
            let next = match blocks.count == 1 && !by_class {
                true => {
                    let out = in_order([1, width, classes]);
                    product(transposed(hidden), of_logits, out, DType::F32)
                }
                false => {
                    let out = in_order([blocks.count, blocks.length, width]);
                    product(transposed(of_logits), hidden, out, DType::F32)
                }
            };
            add_to(&mut of_weight, next);
        }
    }
    let of_weight = of_weight.map(|sum| {
        if blocks.count == 1 && !by_class {
            return viewed(sum, [width, classes], [classes, 1]);
        }
        let of_classes = part(&viewed(sum, [blocks.classes(), width], [width, 1]), 0, classes);
        let of_weight = viewed(of_classes, [width, classes], [1, width]);
        if by_class { of_weight } else { into_contiguous(of_weight) }
    });
    let of_bias = of_bias.map(|sum| part(&sum, 0, classes));
    let loss = match options.reduction {
        Reduction::None => losses,
        _ => reduced::sum(losses, total),
    };
    (loss, LossGradients { hidden: of_hidden, weight: of_weight, bias: of_bias })
}
