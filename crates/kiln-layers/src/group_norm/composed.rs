//! Group norm in a backend's own operations.
//!
//! Peak memory in addition to inputs and outputs: two f32 tensors of the input's size in each direction. If burn fuses (its feature
//! `fusion`), input and gradient are read once for each sum and once for the result, and at most one such tensor exists.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};

use super::GroupNormSettings;
use crate::composed::{Wide, cat, full};

/// `[samples, groups, channels of a group, values of a channel]`.
pub(super) fn sizes(shape: &Shape, groups: usize) -> [usize; 4] {
    [shape[0], groups, shape[1] / groups, shape.iter().skip(2).product()]
}

/// A parameter of each channel, or `otherwise` if there is none.
fn parameter<B: Backend>(values: &FloatTensor<B>, [_, groups, members, _]: [usize; 4], otherwise: f32) -> Wide<B> {
    match values.shape()[0] {
        0 => Wide::of(&full::<B>(Shape::new([1; 4]), otherwise, &values.device(), DType::F32)),
        _ => Wide::<B>::of(values).reshape([1, groups, members, 1]),
    }
}

/// The output, and mean and reciprocal deviation of each group of a sample in f32, `[samples, groups, 2]`.
pub(super) fn forward<B: Backend>(
    x: &FloatTensor<B>,
    weight: &FloatTensor<B>,
    bias: &FloatTensor<B>,
    settings: GroupNormSettings,
) -> [FloatTensor<B>; 2] {
    let (shape, sizes) = (x.shape(), sizes(&x.shape(), settings.groups));
    let [samples, groups, members, values] = sizes;
    if shape.num_elements() == 0 {
        return [x.clone(), full::<B>(Shape::new([samples, groups, 2]), 0.0, &x.device(), DType::F32)];
    }
    let wide = || Wide::<B>::of(x).reshape(sizes);
    let share = 1.0 / (members * values) as f32;
    let mean = wide().sum(&[3, 2]) * share;
    let variance = (wide() - mean.clone()).square().sum(&[3, 2]) * share;
    let deviation = (variance + settings.epsilon).sqrt().recip();
    let (weight, bias) = (parameter::<B>(weight, sizes, 1.0), parameter::<B>(bias, sizes, 0.0));
    let y = (wide() - mean.clone()) * deviation.clone() * weight + bias;
    let [mean, deviation] = [mean, deviation].map(|part| part.reshape([samples, groups, 1]).narrow(DType::F32));
    [B::float_reshape(y.narrow(x.dtype()), shape), cat::<B>(vec![mean, deviation], 2)]
}

/// The gradients of input, weight and bias that are wanted.
pub(super) fn backward<B: Backend>(
    x: &FloatTensor<B>,
    statistics: &FloatTensor<B>,
    weight: &FloatTensor<B>,
    gradient: &FloatTensor<B>,
    settings: GroupNormSettings,
    wanted: [bool; 3],
) -> [Option<FloatTensor<B>>; 3] {
    let (shape, sizes) = (x.shape(), sizes(&x.shape(), settings.groups));
    let [samples, groups, members, values] = sizes;
    let channels = groups * members;
    if shape.num_elements() == 0 {
        let zeros = || full::<B>(Shape::new([channels]), 0.0, &x.device(), weight.dtype());
        return [wanted[0].then(|| gradient.clone()), wanted[1].then(zeros), wanted[2].then(zeros)];
    }
    let statistics = Wide::<B>::of(statistics);
    let [mean, deviation] = [0, 1]
        .map(|column| statistics.slice(&[0..samples, 0..groups, column..column + 1]).reshape([samples, groups, 1, 1]));
    let normal = || (Wide::<B>::of(x).reshape(sizes) - mean.clone()) * deviation.clone();
    let wide = || Wide::<B>::of(gradient).reshape(sizes);
    let of_channels = |sums: Wide<B>| sums.sum(&[3, 0]).reshape([channels]).narrow(weight.dtype());
    let of_x = wanted[0].then(|| {
        let weight = parameter::<B>(weight, sizes, 1.0);
        let share = 1.0 / (members * values) as f32;
        let sum = (wide() * weight.clone()).sum(&[3, 2]) * share;
        let product = (wide() * weight.clone() * normal()).sum(&[3, 2]) * share;
        let dx = (wide() * weight - sum - normal() * product) * deviation.clone();
        B::float_reshape(dx.narrow(x.dtype()), shape)
    });
    [of_x, wanted[1].then(|| of_channels(wide() * normal())), wanted[2].then(|| of_channels(wide()))]
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::DType;

    use super::{backward, forward};
    use crate::composed::tests::{DTYPES, assert_close, numbers};
    use crate::group_norm::GroupNormSettings;
    use crate::group_norm::flex;

    #[test]
    fn as_the_kernels() {
        for (dtype, weights) in [(DType::F16, DType::F32)].into_iter().chain(DTYPES.map(|dtype| (dtype, dtype))) {
            for (groups, shape) in [(1, [3, 4, 5, 7]), (2, [3, 4, 5, 7]), (3, [1, 3, 2, 11])] {
                let what = format!("{dtype:?} {groups} {shape:?}");
                let settings = GroupNormSettings { groups, epsilon: 1e-5 };
                let [x, gradient] = [1, 2].map(|seed| numbers(shape, seed, 3.0, dtype));
                let [weight, bias] = [3, 4].map(|seed| numbers([shape[1]], seed, 1.0, weights));
                let kernels = flex::forward(&x, &weight, &bias, settings);
                for (composed, kernel) in forward::<Flex>(&x, &weight, &bias, settings).iter().zip(&kernels) {
                    assert_close(composed, kernel, &what);
                }
                let composed = backward::<Flex>(&x, &kernels[1], &weight, &gradient, settings, [true; 3]);
                let [_, statistics] = kernels;
                let kernels = flex::backward(&x, &statistics, &weight, gradient, settings, [true; 3]);
                for (composed, kernel) in composed.into_iter().flatten().zip(kernels.into_iter().flatten()) {
                    assert_close(&composed, &kernel, &what);
                }
            }
        }
    }
}
