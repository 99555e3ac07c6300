//! Dropout in a backend's own operations. Its random numbers differ from those of the CPU device.
//!
//! Peak memory in addition to input and output: 8 bytes for each row and for each column. If burn does not fuse (its feature `fusion`),
//! also two I64 tensors, a mask and one f32 tensor of the input's size.

use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{IntDType, Shape};

use super::settings::{Dropout, Rate};
use crate::composed::{Wide, bools, mixed, word};

pub(super) fn dropped<B: Backend>(x: FloatTensor<B>, settings: Dropout) -> FloatTensor<B> {
    let length = x.shape().last().copied().unwrap_or(1);
    if x.shape().num_elements() == 0 {
        return x;
    }
    let rows = x.shape().num_elements() / length;
    let [low, high] = settings.words().map(i64::from);
    let of_rows = B::int_add_scalar(numbers::<B>(0, [rows, 1], &x.device()), low.into());
    let of_rows = B::bitwise_xor_scalar(mixed::<B>(word::<B>(of_rows)), high.into());
    by_rows::<B>(x, of_rows, settings.rate)
}

/// Drops values by a seed of one integer. The first sample has this number.
pub(super) fn dropped_of_samples<B: Backend>(
    x: FloatTensor<B>,
    seed: IntTensor<B>,
    rate: Rate,
    first: usize,
) -> FloatTensor<B> {
    if x.shape().num_elements() == 0 {
        return x;
    }
    let samples = x.shape()[0];
    let seed = B::int_reshape(B::int_cast(seed, IntDType::I64), Shape::new([1, 1]));
    let high = word::<B>(B::bitwise_right_shift_scalar(seed.clone(), 32i64.into()));
    let of_rows = B::int_add(numbers::<B>(first, [samples, 1], &x.device()), word::<B>(seed));
    by_rows::<B>(x, B::bitwise_xor(mixed::<B>(word::<B>(of_rows)), high), rate)
}

/// The numbers after `first`.
fn numbers<B: Backend>(first: usize, shape: [usize; 2], device: &Device<B>) -> IntTensor<B> {
    let (from, count) = (first as i64 + 1, shape[0] * shape[1]);
    B::int_reshape(B::int_arange(from..from + count as i64, device, IntDType::I64), Shape::new(shape))
}

/// Drops values by a number for each row, `[rows, 1]`.
fn by_rows<B: Backend>(x: FloatTensor<B>, of_rows: IntTensor<B>, rate: Rate) -> FloatTensor<B> {
    let (shape, dtype, device, rows) = (x.shape(), x.dtype(), x.device(), of_rows.shape()[0]);
    let length = shape.num_elements() / rows;
    let of_columns = mixed::<B>(numbers::<B>(0, [1, length], &device));
    let of_all = mixed::<B>(B::bitwise_xor(mixed::<B>(of_rows), of_columns));
    let dropped = B::int_lower_elem(of_all, (rate.threshold() as i64).into(), bools::<B>(&device));
    let y = Wide::<B>::of(&x).reshape([rows, length]).fill(dropped, 0.0) * rate.factor();
    B::float_reshape(y.narrow(dtype), shape)
}
