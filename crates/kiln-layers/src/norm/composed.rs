//! Norms over the last dimension in a backend's own operations.
//!
//! Peak memory in addition to inputs and outputs: two f32 tensors of the input's size in each direction, and four values for each row. If
//! burn fuses (its feature `fusion`), input and gradient are read once for each sum and once for the result, and at most one such tensor
//! exists. Tensors keep their shapes: burn does not join a cast with a reshape after it.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};

use super::NormSettings;
use crate::composed::{Wide, full, join};

/// `[rows, values of a row]`.
fn sizes(shape: &Shape) -> [usize; 2] {
    let length = shape.last().copied().unwrap_or(1);
    [shape.num_elements() / length.max(1), length]
}

/// The shape of one value for each row, and of one for each place in a row, beside tensors of `shape`.
fn beside(shape: &Shape) -> [Shape; 2] {
    let last = shape.len() - 1;
    let each = |keeps: fn(usize, usize) -> bool| {
        let sizes = shape.iter().enumerate().map(|(axis, size)| if keeps(axis, last) { *size } else { 1 });
        Shape::from(sizes.collect::<Vec<_>>())
    };
    [each(|axis, last| axis < last), each(|axis, last| axis == last)]
}

/// The output, and mean and reciprocal deviation of each row in f32, `[rows, 2]`.
pub(crate) fn forward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    settings: NormSettings,
) -> [FloatTensor<B>; 2] {
    let (shape, dtype) = (x.shape(), x.dtype());
    let [rows, length] = sizes(&shape);
    if rows * length == 0 {
        let statistics = full::<B>(Shape::new([rows, 2]), 0.0, &x.device(), DType::F32);
        return [x, statistics];
    }
    let ([of_row, of_place], last) = (beside(&shape), shape.len() - 1);
    let wide = || Wide::<B>::of(&x);
    let share = 1.0 / length as f32;
    let mean = match settings.centred {
        true => wide().sum(&[last]) * share,
        false => Wide::zeros(of_row, &x.device()),
    };
    let variance = (wide() - mean.clone()).square().sum(&[last]) * share;
    let deviation = (variance + settings.epsilon).sqrt().recip();
    let y = (wide() - mean.clone()) * deviation.clone() * Wide::<B>::of(&weight).shaped(of_place.clone());
    let y = match bias.shape().num_elements() {
        0 => y,
        _ => y + Wide::<B>::of(&bias).shaped(of_place),
    };
    [y.narrow(dtype), join([mean, deviation].map(|values| values.reshape([rows, 1])), 1)]
}

/// The gradients of input, weight and bias.
pub(crate) fn backward<B: Backend>(
    x: FloatTensor<B>,
    statistics: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    settings: NormSettings,
    wanted: [bool; 3],
) -> [Option<FloatTensor<B>>; 3] {
    let (shape, dtype, weights) = (x.shape(), x.dtype(), weight.dtype());
    let [rows, length] = sizes(&shape);
    if rows * length == 0 {
        let zeros = full::<B>(Shape::new([length]), 0.0, &x.device(), weights);
        return [Some(gradient), Some(zeros.clone()), Some(zeros)];
    }
    let ([of_row, of_place], last) = (beside(&shape), shape.len() - 1);
    let statistics = Wide::<B>::of(&statistics);
    let column = |at: usize| statistics.slice(&[0..rows, at..at + 1]).shaped(of_row.clone());
    let (mean, deviation) = (column(0), column(1));
    let weight = Wide::<B>::of(&weight).shaped(of_place);
    let normal = || (Wide::<B>::of(&x) - mean.clone()) * deviation.clone();
    let wide = || Wide::<B>::of(&gradient);
    let others: Vec<usize> = (0..last).rev().collect();
    let share = 1.0 / length as f32;
    let of_x = || {
        let product = (wide() * weight.clone() * normal()).sum(&[last]) * share;
        let of_normal = wide() * weight.clone() - normal() * product;
        let of_normal = match settings.centred {
            true => of_normal - (wide() * weight.clone()).sum(&[last]) * share,
            false => of_normal,
        };
        (of_normal * deviation.clone()).narrow(dtype)
    };
    let of_weight = || (wide() * normal()).sum(&others).reshape([length]).narrow(weights);
    let of_bias = || wide().sum(&others).reshape([length]).narrow(weights);
    [wanted[0].then(of_x), wanted[1].then(of_weight), wanted[2].then(of_bias)]
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::DType;

    use super::{backward, forward};
    use crate::composed::tests::{DTYPES, assert_close, numbers};
    use crate::norm::NormSettings;
    use crate::norm::flex;

    #[test]
    fn as_the_kernels() {
        for (dtype, weights) in [(DType::F16, DType::F32)].into_iter().chain(DTYPES.map(|dtype| (dtype, dtype))) {
            for (shape, centred) in
                [([0, 3, 4], true), ([1, 1, 3], true), ([3, 5, 7], false), ([2, 17, 127], true), ([2, 17, 127], false)]
            {
                let what = format!("{dtype:?} {shape:?} {centred}");
                let settings = NormSettings { epsilon: 1e-5, centred };
                let (x, gradient) = (numbers(shape, 1, 3.0, dtype), numbers(shape, 2, 1.0, dtype));
                let weight = numbers([shape[2]], 3, 1.0, weights);
                let bias = numbers([if centred { shape[2] } else { 0 }], 4, 1.0, weights);
                let kernel = flex::forward(&x, &weight, &bias, settings);
                let composed = forward::<Flex>(x.clone(), weight.clone(), bias, settings);
                for (composed, kernel) in composed.iter().zip(&kernel) {
                    assert_close(composed, kernel, &what);
                }
                let ([_, statistics], wanted) = (kernel, [true, true, centred]);
                let kernel = flex::backward(&x, &statistics, &weight, gradient.clone(), settings, wanted, None);
                let composed = backward::<Flex>(x, statistics, weight, gradient, settings, wanted);
                for (composed, kernel) in composed.iter().zip(&kernel) {
                    if let (Some(composed), Some(kernel)) = (composed, kernel) {
                        assert_close(composed, kernel, &what);
                    }
                }
            }
        }
    }
}
