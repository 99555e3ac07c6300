//! Tools for tests that compare composed bodies with the kernels of the Flex device, on that device.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape};

use kiln_operations::Kernel;
use kiln_operations::cpu::stored::{from_f32, to_f32};

pub(crate) const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A tensor of numbers from `-scale` to `scale` that look random and are always the same.
pub(crate) fn numbers<const D: usize>(shape: [usize; D], seed: u64, scale: f32, dtype: DType) -> FlexTensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    from_f32((0..shape.iter().product()).map(next).collect(), Shape::new(shape), dtype)
}

/// Asserts that two tensors have the same shape and dtype, and values that differ by at most a few roundings of the largest value, or of
/// 0.05.
pub(crate) fn assert_close(composed: &FlexTensor, kernel: &FlexTensor, what: &str) {
    assert_close_in(kernel.dtype(), composed, kernel, what);
}

/// [`assert_close`], with the roundings of values that were computed in `dtype`.
pub(crate) fn assert_close_in(dtype: DType, composed: &FlexTensor, kernel: &FlexTensor, what: &str) {
    assert_eq!((composed.shape(), composed.dtype()), (kernel.shape(), kernel.dtype()), "{what}");
    let tolerance = match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 1.5e-3,
        _ => 1.2e-2,
    };
    let (composed, kernel) = (to_f32(composed), to_f32(kernel));
    let largest = kernel.iter().fold(0.05f32, |largest, value| largest.max(value.abs()));
    for (index, (composed, kernel)) in composed.iter().zip(&kernel).enumerate() {
        let same = composed == kernel || composed.is_nan() && kernel.is_nan();
        assert!(
            same || (composed - kernel).abs() < tolerance * largest,
            "{what}: {composed} is not {kernel} at {index}"
        );
    }
}

/// Asserts that both forms of a kernel have outputs of the shapes and dtypes that it describes and, for the first `outputs` of them, values as
/// close as if they were computed in the dtype of the first input. The others have no meaning.
pub(crate) fn assert_same_forms(kernel: &impl Kernel, inputs: &[FlexTensor], outputs: usize, what: &str) {
    let described: Vec<_> = inputs.iter().map(|input| (input.shape(), input.dtype())).collect();
    let described = kernel.outputs(&described);
    let (composed, flex) = (kernel.composed::<Flex>(inputs.to_vec()), kernel.flex(inputs.to_vec()));
    for (index, (composed, flex)) in composed.iter().zip(&flex).enumerate().take(outputs) {
        let what = format!("output {index} of {kernel:?} {what}");
        assert_eq!((flex.shape(), flex.dtype()), described[index], "{what}");
        assert_close_in(inputs[0].dtype(), composed, flex, &what);
    }
}

/// Asserts that weights were kept at a rate, and that neighbours at each of the distances agree as often as independent weights do.
/// `kept` has 1 or 0 for each weight, in rows of `columns`.
pub(crate) fn assert_independent(kept: &[f32], columns: usize, rate: f64, distances: &[usize]) {
    assert!(kept.iter().all(|kept| [0.0, 1.0].contains(kept)));
    // Five standard deviations.
    let near = |share: f64, expected: f64, count: usize, what: &str| {
        let bound = 5.0 * (expected * (1.0 - expected) / count as f64).sqrt();
        assert!((share - expected).abs() < bound, "{what}: {share}, expected {expected}");
    };
    let mean =
        |weights: &mut dyn Iterator<Item = f32>, count: usize| weights.map(f64::from).sum::<f64>() / count as f64;
    let rows = kept.len() / columns;
    near(mean(&mut kept.iter().copied(), kept.len()), rate, kept.len(), "all");
    for (row, weights) in kept.chunks_exact(columns).enumerate() {
        near(mean(&mut weights.iter().copied(), columns), rate, columns, &format!("row {row}"));
    }
    for column in 0..columns {
        let weights = &mut kept[column..].iter().step_by(columns).copied();
        near(mean(weights, rows), rate, rows, &format!("column {column}"));
    }
    for distance in distances {
        let pairs = kept.iter().zip(&kept[*distance..]);
        let (same, count) = (pairs.clone().filter(|(left, right)| left == right).count(), pairs.len());
        near(
            same as f64 / count as f64,
            rate * rate + (1.0 - rate) * (1.0 - rate),
            count,
            &format!("distance {distance}"),
        );
    }
}
