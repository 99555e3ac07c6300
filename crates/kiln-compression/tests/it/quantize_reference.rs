//! Scales, codes and ranges against those that torch computes.

use burn::tensor::{Device, Tensor, TensorData};
use kiln_compression::{Blocks, Calibrator, Granularity, QuantizedWeight, Range, RangeMethod, WeightRange};
use proptest::prelude::*;
use safetensors::SafeTensors;

pub(crate) const CASES: [&str; 7] = ["normal", "outliers", "zero_rows", "negative", "positive", "rectified", "small"];

pub(crate) struct Reference(Vec<u8>);

impl Reference {
    pub(crate) fn load() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/compression/quantize.safetensors");
        Self(std::fs::read(path).expect("the reference"))
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let file = SafeTensors::deserialize(&self.0).expect("a file of safetensors");
        file.tensor(name).expect(name).data().to_vec()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.bytes(name))
    }
}

pub(crate) fn close(found: &[f32], expected: &[f32], scale: f32) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= 1e-6 * scale, "{index}: {found}, expected {expected}");
    }
}

pub(crate) fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// `[rows, columns]` as `[columns, rows]`.
pub(crate) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}

#[test]
fn weights_are_those_of_torch() {
    let reference = Reference::load();
    let (rows, columns) = (6, 20);
    for case in CASES {
        let values = reference.floats(&format!("weight.{case}.values"));
        for bits in [4, 8] {
            let scales = reference.floats(&format!("weight.{case}.{bits}.scales"));
            let output = reference.floats(&format!("weight.{case}.{bits}.output"));

            let blocks = Blocks::of(&[rows, columns], false, Granularity::Channel);
            let weight =
                QuantizedWeight::new(&[rows, columns], &values, blocks, bits, WeightRange::Max, false).unwrap();
            for (row, (found, expected)) in weight.scales().iter().zip(&scales).enumerate() {
                // A row of zeros has the scale 1 here and torch's smallest scale there, and is a row of zeros with both.
                let zeros = largest(&values[row * columns..(row + 1) * columns]) == 0.0;
                close(&[if zeros { *expected } else { *found }], &[*expected], *expected);
            }
            close(&weight.dequantize(), &output, largest(&values).min(1.0));

            // The same weight as a linear layer of burn has it.
            let blocks = Blocks::of(&[columns, rows], true, Granularity::Channel);
            let across = transposed(&values, columns);
            let linear =
                QuantizedWeight::new(&[columns, rows], &across, blocks, bits, WeightRange::Max, false).unwrap();
            assert_eq!(linear.scales(), weight.scales());
            assert_eq!(transposed(&linear.dequantize(), rows), weight.dequantize());
        }
    }
}

#[test]
fn activations_are_those_of_torch() {
    let reference = Reference::load();
    for case in CASES {
        let name = format!("activation.{case}");
        let values = reference.floats(&format!("{name}.values"));
        let mut calibrator = Calibrator::new(RangeMethod::MinMax).unwrap();
        for batch in values.chunks(64) {
            calibrator.observe(batch).unwrap();
        }
        let range = calibrator.range().unwrap();
        assert_eq!([range.low, range.high], reference.floats(&format!("{name}.range"))[..]);

        let affine = range.affine();
        let scale = reference.floats(&format!("{name}.scale"))[0];
        close(&[affine.scale], &[scale], scale);
        let zero_point: Vec<i32> = bytemuck::pod_collect_to_vec(&reference.bytes(&format!("{name}.zero_point")));
        assert_eq!(i32::from(affine.zero_point), zero_point[0]);

        let codes: Vec<u8> = values.iter().map(|value| affine.code(*value)).collect();
        assert_eq!(codes, reference.bytes(&format!("{name}.codes")));
        let output: Vec<f32> = codes.iter().map(|code| affine.value(*code)).collect();
        close(&output, &reference.floats(&format!("{name}.output")), largest(&values));
    }
}

/// torch's search is a greedy one over the same kind of histogram: the ranges differ, the errors hardly.
#[test]
fn the_range_of_least_error_is_as_good_as_that_of_torch() {
    let reference = Reference::load();
    let error = |range: Range, values: &[f32]| {
        let affine = range.affine();
        values.iter().map(|value| f64::from(affine.value(affine.code(*value)) - value).powi(2)).sum::<f64>()
    };
    for case in ["normal", "outliers", "rectified", "negative"] {
        let values = reference.floats(&format!("histogram.{case}.values"));
        let mut calibrator = Calibrator::new(RangeMethod::Mse).unwrap();
        for batch in values.chunks(1000) {
            calibrator.observe(batch).unwrap();
        }
        let found = calibrator.range().unwrap();
        let expected = reference.floats(&format!("histogram.{case}.range"));
        let torch = Range { low: expected[0], high: expected[1] };
        let all =
            Range { low: values.iter().copied().fold(0.0, f32::min), high: values.iter().copied().fold(0.0, f32::max) };
        let (found_error, torch_error, all_error) = (error(found, &values), error(torch, &values), error(all, &values));
        assert!(found_error <= 1.02 * torch_error, "{case}: {found:?} {found_error}, torch's {torch:?} {torch_error}");
        assert!(found_error <= 1.02 * all_error, "{case}: {found:?} {found_error}, all {all_error}");
        if case != "outliers" {
            let extent = torch.high.max(0.0) - torch.low.min(0.0);
            assert!((found.high.max(0.0) - torch.high.max(0.0)).abs() < 0.15 * extent, "{case}: {found:?} {torch:?}");
            assert!((found.low.min(0.0) - torch.low.min(0.0)).abs() < 0.15 * extent, "{case}: {found:?} {torch:?}");
        }
    }
}

proptest! {
    #[test]
    fn tensors_are_quantised_to_the_same_codes(
        values in prop::collection::vec(-100_i32..100, 24), unit in 0.01_f32..2.0, bits in 2_u8..=8, size in 1_usize..7, output_last: bool,
    ) {
        // Whole numbers of units make many quotients that lie between two codes.
        let values: Vec<f32> = values.iter().map(|value| *value as f32 * unit).collect();
        let blocks = Blocks::of(&[6, 4], output_last, Granularity::Block(size));
        let weight = QuantizedWeight::new(&[6, 4], &values, blocks, bits, WeightRange::Max, false).unwrap();

        let device = Device::flex();
        let limit = f32::from((1_i16 << (bits - 1)) - 1);
        let tensor = Tensor::<1>::from_data(TensorData::new(values, [24]), &device).reshape([blocks.groups, blocks.length, blocks.columns]);
        let scales = tensor.clone().abs().max_dim(1).div_scalar(limit);
        let scales = scales.clone().mask_fill(scales.equal_elem(0.0), 1.0);
        let codes = tensor.div(scales.clone()).round().clamp(-limit, limit);
        let bits = |tensor: Tensor<3>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
        prop_assert_eq!(bits(scales.clone()), weight.scales().to_vec());
        prop_assert_eq!(bits(codes.clone()), weight.codes().iter().map(|code| f32::from(*code)).collect::<Vec<_>>());
        prop_assert_eq!(bits(codes.mul(scales)), weight.dequantize());
    }
}
