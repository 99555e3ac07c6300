//! Arithmetic in f32 with any backend's own operations, for the bodies of operations on devices without kernels of this crate.
//!
//! An operation's `composed.rs` computes its forward and backward pass with these, inside of the operation's single node in burn's graph.
//! So it keeps the same tensors as on the CPU device, and only temporary tensors differ. Each pass widens its inputs anew ([`Wide::of`])
//! and narrows its result. If burn fuses, such a chain is one kernel that reads and writes 16 bits, and no f32 copy exists. Otherwise
//! each step of a chain is written once, in place if possible.

use std::ops::{Add, Div, Mul, Neg, Range, Sub};

use burn::backend::tensor::{BoolTensor, Device, FloatTensor, IndexingUpdateOp, IntTensor};
use burn::backend::{Backend, BoolDType, TensorMetadata, get_or_init_device_settings};
use burn::tensor::{DType, FloatDType, Shape, Slice};

/// A tensor of f32 values.
#[derive(Clone, Debug)]
pub(crate) struct Wide<B: Backend>(FloatTensor<B>);

impl<B: Backend> Wide<B> {
    /// The values of a tensor of any float dtype.
    pub(crate) fn of(tensor: &FloatTensor<B>) -> Self {
        Self(cast::<B>(tensor.clone(), DType::F32))
    }

    pub(crate) fn zeros(shape: Shape, device: &Device<B>) -> Self {
        Self(full::<B>(shape, 0.0, device, DType::F32))
    }

    /// The tensor in `dtype`.
    pub(crate) fn narrow(self, dtype: DType) -> FloatTensor<B> {
        cast::<B>(self.0, dtype)
    }

    pub(crate) fn shape(&self) -> Shape {
        self.0.shape()
    }

    pub(crate) fn device(&self) -> Device<B> {
        self.0.device()
    }

    pub(crate) fn reshape<const D: usize>(self, shape: [usize; D]) -> Self {
        Self(B::float_reshape(self.0, Shape::new(shape)))
    }

    pub(crate) fn shaped(self, shape: Shape) -> Self {
        Self(B::float_reshape(self.0, shape))
    }

    pub(crate) fn permute(self, axes: &[usize]) -> Self {
        Self(B::float_permute(self.0, axes))
    }

    /// Swaps the last two dimensions.
    pub(crate) fn transpose(self) -> Self {
        Self(B::float_transpose(self.0))
    }

    /// A range of each of the first dimensions.
    pub(crate) fn slice(&self, ranges: &[Range<usize>]) -> Self {
        Self(slice::<B>(&self.0, ranges))
    }

    /// Adds `values` to a range of each of the first dimensions.
    pub(crate) fn add_to(self, ranges: &[Range<usize>], values: Self) -> Self {
        let sum = self.slice(ranges) + values;
        Self(put::<B>(self.0, ranges, sum.0))
    }

    pub(crate) fn matmul(self, right: Self) -> Self {
        Self(B::float_matmul(self.0, right.0))
    }

    /// The sum over `dims`, each of which keeps a length of 1. Dimensions are summed one after the other, because burn fuses such a sum
    /// with its operand, but not a sum over several dimensions.
    pub(crate) fn sum(self, dims: &[usize]) -> Self {
        Self(dims.iter().fold(self.0, |sum, dim| B::float_sum_dim(sum, *dim)))
    }

    /// The largest value along `dim`, which keeps a length of 1.
    pub(crate) fn largest(self, dim: usize) -> Self {
        Self(B::float_max_dim(self.0, dim))
    }

    /// The value at an index of each row of a matrix. `indices` are `[rows, 1]`.
    pub(crate) fn at(self, indices: IntTensor<B>) -> Self {
        Self(B::float_gather(1, self.0, indices))
    }

    /// The values of a vector at the indices `[rows]`.
    pub(crate) fn select(self, indices: IntTensor<B>) -> Self {
        Self(B::float_select(self.0, 0, indices))
    }

    /// Adds a value of `[rows, 1]` at an index of each row of a matrix.
    pub(crate) fn add_at(self, indices: IntTensor<B>, values: Self) -> Self {
        Self(B::float_scatter(1, self.0, indices, values.0, IndexingUpdateOp::Add))
    }

    pub(crate) fn exp(self) -> Self {
        Self(B::float_exp(self.0))
    }

    pub(crate) fn ln(self) -> Self {
        Self(B::float_log(self.0))
    }

    pub(crate) fn sqrt(self) -> Self {
        Self(B::float_sqrt(self.0))
    }

    pub(crate) fn recip(self) -> Self {
        Self(B::float_recip(self.0))
    }

    pub(crate) fn erf(self) -> Self {
        Self(B::float_erf(self.0))
    }

    /// 1 / (1 + exp(-x)).
    pub(crate) fn sigmoid(self) -> Self {
        ((-self).exp() + 1.0).recip()
    }

    pub(crate) fn square(self) -> Self {
        self.clone() * self
    }

    /// Whether each value equals `number`.
    pub(crate) fn equal(self, number: f32) -> BoolTensor<B> {
        let dtype = bools::<B>(&self.0.device());
        B::float_equal_elem(self.0, number.into(), dtype)
    }

    /// Whether each value is at most 0; false for NaN.
    pub(crate) fn not_positive(self) -> BoolTensor<B> {
        let dtype = bools::<B>(&self.0.device());
        B::float_lower_equal_elem(self.0, 0f32.into(), dtype)
    }

    /// Sets elements to `value` where `mask` is set. The mask has the same number of dimensions; a dimension of length 1 is for all
    /// indices.
    pub(crate) fn fill(self, mask: BoolTensor<B>, value: f32) -> Self {
        let mask = B::bool_expand(mask, self.0.shape());
        Self(B::float_mask_fill(self.0, mask, value.into()))
    }
}

/// Implements arithmetic of tensors with the same number of dimensions, where a dimension of length 1 is for all indices, and of tensors
/// with numbers.
macro_rules! arithmetic {
    ($($trait:ident $method:ident $tensors:ident $number:ident;)*) => {$(
        impl<B: Backend> $trait for Wide<B> {
            type Output = Self;

            fn $method(self, right: Self) -> Self {
                Self(B::$tensors(self.0, right.0))
            }
        }

        impl<B: Backend> $trait<f32> for Wide<B> {
            type Output = Self;

            fn $method(self, right: f32) -> Self {
                Self(B::$number(self.0, right.into()))
            }
        }
    )*};
}
arithmetic! {
    Add add float_add float_add_scalar;
    Sub sub float_sub float_sub_scalar;
    Mul mul float_mul float_mul_scalar;
    Div div float_div float_div_scalar;
}

impl<B: Backend> Neg for Wide<B> {
    type Output = Self;

    fn neg(self) -> Self {
        Self(B::float_neg(self.0))
    }
}

/// The dtype of a device's masks.
pub(crate) fn bools<B: Backend>(device: &Device<B>) -> BoolDType {
    get_or_init_device_settings::<B>(device).bool_dtype
}

/// A tensor filled with one number, in `dtype`.
pub(crate) fn full<B: Backend>(shape: Shape, value: f32, device: &Device<B>, dtype: DType) -> FloatTensor<B> {
    let dtype = FloatDType::from(dtype);
    match shape.num_elements() {
        // burn-fusion takes a dimension of 0 for one that broadcasts: fused with tensors of one row, their kernel would write nothing.
        0 => B::float_empty(shape, device, dtype),
        _ => B::float_full(shape, value.into(), device, dtype),
    }
}

/// Concatenates the tensors along `dim`, in f32.
pub(crate) fn join<B: Backend, const N: usize>(parts: [Wide<B>; N], dim: usize) -> FloatTensor<B> {
    cat::<B>(parts.map(|part| part.0).into(), dim)
}

/// Concatenates the tensors, of the same dtype, along `dim`. The whole result counts as never written if one of the tensors was never
/// written; see [`put`].
pub(crate) fn cat<B: Backend>(mut parts: Vec<FloatTensor<B>>, dim: usize) -> FloatTensor<B> {
    if let Some(last) = parts.pop() {
        let last = parts.iter().fold(last, |last, part| lost_with::<B>(last, part));
        parts.push(last);
    }
    B::float_cat(parts, dim)
}

/// Returns `values`, which count as never written if `other` was never written: if the device had no memory for it, or skipped the
/// operation that writes it because memory for something else was refused.
fn lost_with<B: Backend>(values: FloatTensor<B>, other: &FloatTensor<B>) -> FloatTensor<B> {
    let (shape, dtype) = (other.shape(), values.dtype());
    if shape.num_elements() == 0 || values.shape().num_elements() == 0 {
        return values;
    }
    let element = slice::<B>(other, &vec![0..1; shape.num_dims()]);
    let element = B::float_reshape(element, Shape::from(vec![1; values.shape().num_dims()]));
    // It is zero, also for NaN. Subtracting it changes no value.
    let is_zero = B::float_equal_elem(element, 0f32.into(), bools::<B>(&other.device()));
    let zero = B::float_mul_scalar(B::bool_into_float(is_zero, FloatDType::from(dtype)), 0f32.into());
    B::float_sub(values, zero)
}

/// A range of each of the first dimensions.
pub(crate) fn slice<B: Backend>(tensor: &FloatTensor<B>, ranges: &[Range<usize>]) -> FloatTensor<B> {
    B::float_slice(tensor.clone(), &slices(&tensor.shape(), ranges))
}

/// Writes `values` to a range of each of the first dimensions. `tensor` is overwritten if no other handle to it exists.
///
/// A CubeCL device skips operations that read memory which it could not allocate, and notes that their results were never written. A
/// tensor that is written piece by piece would count as written after its last piece, even if other pieces were skipped. Each piece is
/// therefore made to depend on the tensor so far.
pub(crate) fn put<B: Backend>(
    tensor: FloatTensor<B>,
    ranges: &[Range<usize>],
    values: FloatTensor<B>,
) -> FloatTensor<B> {
    let slices = slices(&tensor.shape(), ranges);
    let values = lost_with::<B>(values, &tensor);
    B::float_slice_assign(tensor, &slices, values)
}

/// A mask of the lowest 32 bits.
pub(crate) const WORD: i64 = 0xFFFF_FFFF;

/// Mixes the bits of 32-bit numbers, in 64 bits so that no product overflows (the mixing function of "splitmix32", Ettinger).
pub(crate) fn mixed<B: Backend>(numbers: IntTensor<B>) -> IntTensor<B> {
    let folded = |numbers: IntTensor<B>, shift: i64| {
        B::bitwise_xor(numbers.clone(), B::bitwise_right_shift_scalar(numbers, shift.into()))
    };
    let times = |numbers: IntTensor<B>, factor: i64| word::<B>(B::int_mul_scalar(numbers, factor.into()));
    let numbers = times(folded(numbers, 16), 0x21F0_AAAD);
    folded(times(folded(numbers, 15), 0x735A_2D97), 15)
}

/// The lowest 32 bits of numbers.
pub(crate) fn word<B: Backend>(numbers: IntTensor<B>) -> IntTensor<B> {
    B::bitwise_and_scalar(numbers, WORD.into())
}

fn slices(shape: &Shape, ranges: &[Range<usize>]) -> Vec<Slice> {
    let all = shape.iter().map(|length| 0..*length);
    all.enumerate().map(|(dim, all)| Slice::from(ranges.get(dim).cloned().unwrap_or(all))).collect()
}

/// The tensor in a float dtype.
pub(crate) fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => B::float_cast(tensor, FloatDType::from(dtype)),
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
pub(crate) mod tests;
