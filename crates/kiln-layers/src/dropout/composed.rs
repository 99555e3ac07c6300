//! Dropout in a backend's own operations. Its random numbers differ from those of the CPU device.
//!
//! Peak memory in addition to input and output: 8 bytes for each row and for each column. If burn does not fuse (its feature `fusion`),
//! also two I64 tensors, a mask and one f32 tensor of the input's size.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{IntDType, Shape};

use super::DropoutSettings;
use crate::composed::{WORD, Wide, bools, mixed, word};

pub(super) fn dropped<B: Backend>(x: FloatTensor<B>, settings: DropoutSettings) -> FloatTensor<B> {
    let (shape, dtype, device) = (x.shape(), x.dtype(), x.device());
    let length = shape.last().copied().unwrap_or(1);
    if shape.num_elements() == 0 {
        return x;
    }
    let rows = shape.num_elements() / length;
    let numbers = |count: usize, shape| {
        B::int_reshape(B::int_arange(1..count as i64 + 1, &device, IntDType::I64), Shape::new(shape))
    };
    let (low, high) = (settings.seed as i64 & WORD, (settings.seed >> 32) as i64);
    let of_rows = mixed::<B>(word::<B>(B::int_add_scalar(numbers(rows, [rows, 1]), low.into())));
    let of_rows = mixed::<B>(B::bitwise_xor_scalar(of_rows, high.into()));
    let of_all = mixed::<B>(B::bitwise_xor(of_rows, mixed::<B>(numbers(length, [1, length]))));
    let threshold = (settings.probability * 2f64.powi(32)).round() as i64;
    let dropped = B::int_lower_elem(of_all, threshold.into(), bools::<B>(&device));
    let factor = if settings.probability < 1.0 { 1.0 / (1.0 - settings.probability) } else { 0.0 };
    let y = Wide::<B>::of(&x).reshape([rows, length]).fill(dropped, 0.0) * factor as f32;
    B::float_reshape(y.narrow(dtype), shape)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::DType;

    use super::dropped;
    use crate::composed::tests::assert_independent;
    use crate::dropout::DropoutSettings;
    use kiln_operations::cpu::stored::{from_f32, to_f32};

    #[test]
    fn the_rate_is_dropped_and_the_same_each_time() {
        let drop = |probability, seed| {
            let x = from_f32(vec![1.0; 64 * 256], [64, 256].into(), DType::F32);
            to_f32(&dropped::<Flex>(x, DropoutSettings { probability, seed }))
        };
        for seed in [0, 1, u64::MAX] {
            let values = drop(0.25, seed);
            let kept: Vec<f32> = values.iter().map(|value| value * 0.75).collect();
            // The neighbour in the next column and the neighbour in the next row.
            assert_independent(&kept, 256, 0.75, &[1, 256]);
            assert_eq!(values, drop(0.25, seed));
            assert_ne!(values, drop(0.25, seed ^ 2));
        }
        assert!(drop(1.0, 3).iter().all(|value| *value == 0.0));
        assert!(drop(0.0, 3).iter().all(|value| *value == 1.0));
    }
}
