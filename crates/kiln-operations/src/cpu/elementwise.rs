//! Operations on 16-bit values by all threads. burn computes them on one thread, value by value.

use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;
use rayon::prelude::*;

use super::stored::{Stored, bf16, f16, tensor};
use crate::simd;

/// Values of a task.
const CHUNK: usize = 1 << 14;
/// Values that a task converts at a time.
const PIECE: usize = 1 << 10;

/// A tensor in another dtype, in row-major order, converted by all threads.
pub fn cast(x: FlexTensor, dtype: DType) -> FlexTensor {
    fn convert<E: Stored, K: Stored>(values: &[E]) -> Vec<K> {
        let mut kept = vec![K::zeroed(); values.len()];
        let chunks = kept.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
        chunks.for_each_init(
            || (vec![], vec![]),
            |(wide, buffer), (kept, values)| {
                for (kept, values) in kept.chunks_mut(PIECE).zip(values.chunks(PIECE)) {
                    let values = E::widened(values, wide);
                    K::written(kept, buffer, |out| out.copy_from_slice(values));
                }
            },
        );
        kept
    }
    if x.dtype() == dtype {
        return x;
    }
    let values = x.to_contiguous();
    let shape = values.shape();
    match (values.dtype(), dtype) {
        (DType::F32, DType::BF16) => tensor(convert::<f32, bf16>(values.storage()), shape),
        (DType::BF16, DType::F32) => tensor(convert::<bf16, f32>(values.storage()), shape),
        (DType::F32, DType::F16) => tensor(convert::<f32, f16>(values.storage()), shape),
        (DType::F16, DType::F32) => tensor(convert::<f16, f32>(values.storage()), shape),
        _ => Flex::float_cast(values, dtype.into()),
    }
}

simd! { fn add_values(sums: &mut [f32], others: &[f32]) {
    sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
}}

/// The sum of two tensors of one shape and dtype, in the memory of one of them if there is no other handle to it, as in burn.
pub fn add(a: FlexTensor, b: FlexTensor) -> FlexTensor {
    fn add_to<E: Stored>(sums: &mut [E], others: &[E]) {
        let chunks = sums.par_chunks_mut(CHUNK).zip(others.par_chunks(CHUNK));
        chunks.for_each_init(
            || (vec![], vec![]),
            |(wide, kept), (sums, others)| {
                for (sums, others) in sums.chunks_mut(PIECE).zip(others.chunks(PIECE)) {
                    let others = E::widened(others, wide);
                    E::changed(sums, kept, |sums| add_values(sums, others));
                }
            },
        );
    }
    fn run<E: Stored>(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        let (mut sum, other) = if a.is_unique() || !b.is_unique() { (a, b) } else { (b, a) };
        if !sum.is_unique() {
            sum = tensor(sum.storage::<E>().to_vec(), sum.shape());
        }
        add_to::<E>(sum.storage_mut(), other.storage());
        sum
    }
    let whole = |x: &FlexTensor| x.is_contiguous() && x.bytes().len() == x.shape().num_elements() * x.dtype().size();
    match a.dtype() {
        _ if a.shape() != b.shape() || !whole(&a) || !whole(&b) => Flex::float_add(a, b),
        DType::F16 => run::<f16>(a, b),
        DType::BF16 => run::<bf16>(a, b),
        _ => Flex::float_add(a, b),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Shape, TensorData};

    use super::*;
    use crate::cpu::stored::from_f32;

    fn numbers(count: usize, dtype: DType) -> FlexTensor {
        let values = (0..count).map(|i| (i * 7919 % 4001) as f32 / 99.7 - 20.0).collect();
        from_f32(values, Shape::new([count]), dtype)
    }

    fn data(tensor: FlexTensor) -> TensorData {
        TensorData::from_bytes_vec(tensor.bytes().to_vec(), tensor.shape(), tensor.dtype())
    }

    #[test]
    fn values_are_those_of_burn() {
        for count in [0, 1, PIECE + 1, CHUNK + 3, 3 * CHUNK] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let (a, b) = (numbers(count, dtype), numbers(count, DType::F32));
                for to in [DType::F32, DType::F16, DType::BF16] {
                    let expected = Flex::float_cast(a.clone(), to.into());
                    assert_eq!(data(cast(a.clone(), to)), data(expected), "{count} of {dtype:?} to {to:?}");
                }
                let b = cast(b, dtype);
                let expected = data(Flex::float_add(a.clone(), b.clone()));
                assert_eq!(data(add(a.clone(), b.clone())), expected, "{count} of {dtype:?}");
                let (kept, shared) = (a.clone(), b.clone());
                assert_eq!(data(add(a, shared)), expected);
                assert_eq!(data(add(b, kept)), expected);
            }
        }
    }

    #[test]
    fn views_are_read_as_they_are() {
        for dtype in [DType::F32, DType::BF16] {
            let matrix = numbers(3 * 50, dtype).reshape(Shape::new([3, 50]));
            let swapped = matrix.clone().with_layout(matrix.layout().transpose(0, 1));
            let part = Flex::float_slice(matrix.clone(), &[(1..3).into(), (5..45).into()]);
            for view in [swapped, part] {
                for to in [DType::F32, DType::BF16] {
                    let (own, expected) = (cast(view.clone(), to), Flex::float_cast(view.clone(), to.into()));
                    assert_eq!(data(own.to_contiguous()), data(expected.to_contiguous()));
                }
                let (own, expected) = (add(view.clone(), view.clone()), Flex::float_add(view.clone(), view.clone()));
                assert_eq!(data(own.to_contiguous()), data(expected.to_contiguous()));
            }
        }
    }

    #[test]
    fn a_sum_is_written_over_a_summand_that_nobody_else_has() {
        let [a, b] = [1, 2].map(|_| numbers(5, DType::BF16));
        let (first, kept) = (b.bytes().as_ptr(), a.clone());
        let sum = add(a, b);
        assert_eq!(sum.bytes().as_ptr(), first);
        assert_eq!(data(kept), data(numbers(5, DType::BF16)));
    }
}
