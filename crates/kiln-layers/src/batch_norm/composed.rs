//! Batch norm and the activation after it in a backend's own operations.
//!
//! Peak memory in addition to inputs and outputs: two f32 tensors of the input's size in each direction, a mask for an activation, and
//! two tensors more for hard-swish. If burn fuses (its feature `fusion`), input and gradient are read once for each sum and once for the
//! result, and at most one such tensor exists.
//!
//! Tensors are taken as rows of channels: burn's convolutions on CubeCL store them so. They are reshaped as they are stored, before the
//! cast to f32: burn does not join a cast with a reshape after it.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};

use super::settings::{BatchNormOutput, BatchNormSaved, HARD_SWISH, RELU6};
use super::{NormActivation, NormSettings};
use crate::composed::{Wide, full, join};

/// The number of rows and of channels.
fn sizes(shape: &Shape) -> [usize; 2] {
    [shape.num_elements() / shape[1].max(1), shape[1]]
}

/// The axes with the channels behind all others.
fn last(shape: &Shape) -> Vec<usize> {
    let others = (0..shape.len()).filter(|axis| *axis != 1);
    others.chain([1]).collect()
}

/// Rows of channels, of a tensor `[samples, channels, ..]`.
fn rows<B: Backend>(tensor: &FloatTensor<B>) -> Wide<B> {
    let shape = tensor.shape();
    let rows = B::float_permute(tensor.clone(), &last(&shape));
    Wide::<B>::of(&B::float_reshape(rows, Shape::new(sizes(&shape))))
}

/// The tensor of this shape and dtype with these rows.
fn of_rows<B: Backend>(rows: Wide<B>, shape: &Shape, dtype: DType) -> FloatTensor<B> {
    let axes = last(shape);
    let permuted: Vec<usize> = axes.iter().map(|axis| shape[*axis]).collect();
    let back: Vec<usize> =
        (0..axes.len()).map(|axis| axes.iter().position(|other| *other == axis).unwrap_or(axis)).collect();
    B::float_permute(B::float_reshape(rows.narrow(dtype), Shape::from(permuted)), &back)
}

/// Reshapes one value for each channel to `[1, channels]`.
fn channels<B: Backend>(values: &FloatTensor<B>) -> Wide<B> {
    let count = values.shape().num_elements();
    Wide::<B>::of(values).reshape([1, count])
}

/// The norm without the activation. Mean, reciprocal deviation, weight and bias are `[1, channels]`.
fn line<B: Backend>(x: Wide<B>, [mean, deviation, weight, bias]: [Wide<B>; 4]) -> Wide<B> {
    (x - mean) * (deviation * weight) + bias
}

/// The activation of `values`.
fn activated<B: Backend>(values: Wide<B>, activation: NormActivation) -> Wide<B> {
    match activation {
        NormActivation::None => values,
        NormActivation::Relu => values.clone().fill(values.not_positive(), 0.0),
        NormActivation::LeakyRelu { slope } => {
            let positive = values.clone().fill(values.clone().not_positive(), 0.0);
            (values - positive.clone()) * slope + positive
        }
        NormActivation::Relu6 => {
            let positive = values.clone().fill(values.not_positive(), 0.0);
            positive.clone().fill((positive * -1.0 + RELU6).not_positive(), RELU6)
        }
        NormActivation::HardSwish => {
            let low = (values.clone() + HARD_SWISH).not_positive();
            let gate = (values.clone() + HARD_SWISH) * (0.5 / HARD_SWISH);
            (hard_swish_top(gate, values.clone()) * values).fill(low, 0.0)
        }
    }
}

/// Sets `values` to 1 where hard-swish returns z itself.
fn hard_swish_top<B: Backend>(values: Wide<B>, z: Wide<B>) -> Wide<B> {
    values.fill((z * -1.0 + HARD_SWISH).not_positive(), 1.0)
}

/// The gradient through the activation. `z` is its input or its output; for hard-swish its input.
fn through<B: Backend>(gradient: Wide<B>, z: Wide<B>, activation: NormActivation) -> Wide<B> {
    match activation {
        NormActivation::None => gradient,
        NormActivation::Relu => gradient.fill(z.not_positive(), 0.0),
        NormActivation::LeakyRelu { slope } => {
            let positive = gradient.clone().fill(z.not_positive(), 0.0);
            (gradient - positive.clone()) * slope + positive
        }
        NormActivation::Relu6 => {
            let positive = gradient.fill(z.clone().not_positive(), 0.0);
            positive.fill((z * -1.0 + RELU6).not_positive(), 0.0)
        }
        NormActivation::HardSwish => {
            let low = (z.clone() + HARD_SWISH).not_positive();
            let slope = hard_swish_top(z.clone() * (1.0 / HARD_SWISH) + 0.5, z);
            (gradient * slope).fill(low, 0.0)
        }
    }
}

/// The output, the new running statistics, and the statistics of the pass. `of_channels` are weight, bias, running mean and running
/// variance.
pub(super) fn forward<B: Backend>(
    x: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
    of_channels: [FloatTensor<B>; 4],
    settings: NormSettings,
) -> BatchNormOutput<FloatTensor<B>> {
    let (shape, dtype) = (x.shape(), x.dtype());
    let [height, count] = sizes(&shape);
    let [weight, bias, running_mean, running_variance] = of_channels;
    if shape.num_elements() == 0 {
        let statistics = full::<B>(Shape::new([3, count]), 0.0, &x.device(), DType::F32);
        return BatchNormOutput { y: x, running: [running_mean, running_variance], statistics };
    }
    let wide = || rows::<B>(&x);
    let share = 1.0 / height as f32;
    let (mean, variance) = match settings.momentum {
        Some(_) => {
            let mean = wide().sum(&[0]) * share;
            (mean.clone(), (wide() - mean).square().sum(&[0]) * share)
        }
        None => (channels::<B>(&running_mean), channels::<B>(&running_variance)),
    };
    let deviation = (variance.clone() + settings.epsilon).sqrt().recip();
    let running = match settings.momentum {
        Some(momentum) => [(&running_mean, &mean), (&running_variance, &variance)].map(|(kept, batch)| {
            let kept_share = Wide::<B>::of(kept) * (1.0 - momentum) as f32;
            (kept_share + batch.clone().reshape([count]) * momentum as f32).narrow(kept.dtype())
        }),
        None => [running_mean, running_variance],
    };
    let y = line(wide(), [mean.clone(), deviation.clone(), channels::<B>(&weight), channels::<B>(&bias)]);
    let y = match residual {
        Some(residual) => y + rows::<B>(&residual),
        None => y,
    };
    let y = activated(y, settings.activation);
    let row = |values: Wide<B>| values.reshape([1, count]);
    // In the kernels of the CPU device the mean has a second part.
    let rest = Wide::zeros(Shape::new([1, count]), &x.device());
    BatchNormOutput { y: of_rows(y, &shape, dtype), running, statistics: join([row(mean), rest, row(deviation)], 0) }
}

/// Computes the output again from the statistics of the pass. `parameters` are weight and bias.
#[allow(clippy::single_range_in_vec_init, reason = "a range of the first dimension")]
pub(super) fn again<B: Backend>(
    x: FloatTensor<B>,
    statistics: FloatTensor<B>,
    parameters: [FloatTensor<B>; 2],
    activation: NormActivation,
) -> FloatTensor<B> {
    let (shape, dtype) = (x.shape(), x.dtype());
    let count = shape[1];
    if shape.num_elements() == 0 {
        return x;
    }
    let statistics = Wide::<B>::of(&statistics);
    let [mean, rest, deviation] = [0, 1, 2].map(|row| statistics.slice(&[row..row + 1]).reshape([1, count]));
    let [weight, bias] = parameters.each_ref().map(channels::<B>);
    let y = line(rows::<B>(&x), [mean + rest, deviation, weight, bias]);
    of_rows(activated(y, activation), &shape, dtype)
}

/// The gradients of input, weight, bias and residual.
#[allow(clippy::single_range_in_vec_init, reason = "a range of the first dimension")]
pub(super) fn backward<B: Backend>(
    saved: BatchNormSaved<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    wanted: [bool; 4],
) -> [Option<FloatTensor<B>>; 4] {
    let (shape, dtype, parameters) = (gradient.shape(), gradient.dtype(), saved.weight.dtype());
    let [height, count] = sizes(&shape);
    if shape.num_elements() == 0 {
        let zeros = full::<B>(Shape::new([count]), 0.0, &gradient.device(), parameters);
        return [Some(gradient.clone()), Some(zeros.clone()), Some(zeros), wanted[3].then_some(gradient)];
    }
    let statistics = Wide::<B>::of(&saved.statistics);
    let [mean, rest, deviation] = [0, 1, 2].map(|row| statistics.slice(&[row..row + 1]).reshape([1, count]));
    let mean = mean + rest;
    let (weight, bias) = (channels::<B>(&saved.weight), channels::<B>(&saved.bias));
    let of_channels = [mean.clone(), deviation.clone(), weight.clone(), bias];
    let passed = || {
        let z = match (&saved.y, &saved.x) {
            (Some(y), _) => rows::<B>(y),
            (None, Some(x)) => line(rows::<B>(x), of_channels.clone()),
            // This case is possible only if no activation follows the norm.
            (None, None) => rows::<B>(&gradient),
        };
        through(rows::<B>(&gradient), z, saved.settings.activation)
    };
    let whole = |rows: Wide<B>| of_rows(rows, &shape, dtype);
    let channel = |values: Wide<B>| values.reshape([count]).narrow(parameters);
    let sum = passed().sum(&[0]);
    let normal = saved.x.as_ref().map(|x| (rows::<B>(x) - mean) * deviation.clone());
    let product = normal.clone().map(|normal| (passed() * normal).sum(&[0]));
    let share = 1.0 / height as f32;
    let of_x = || {
        let of_normal = match (&normal, &product, saved.settings.momentum) {
            (Some(normal), Some(product), Some(_)) => {
                passed() - sum.clone() * share - normal.clone() * (product.clone() * share)
            }
            _ => passed(),
        };
        whole(of_normal * (deviation.clone() * weight))
    };
    let dx = wanted[0].then(of_x);
    let of_residual = wanted[3].then(|| whole(passed()));
    [dx, product.filter(|_| wanted[1]).map(channel), wanted[2].then(|| channel(sum)), of_residual]
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::DType;

    use super::{backward, forward};
    use crate::batch_norm::flex;
    use crate::batch_norm::settings::BatchNormSaved;
    use crate::batch_norm::{NormActivation, NormSettings};
    use crate::composed::tests::{DTYPES, assert_close, numbers};

    #[test]
    fn as_the_kernels() {
        let leaky = NormActivation::LeakyRelu { slope: 0.1 };
        let activations =
            [NormActivation::None, NormActivation::Relu, leaky, NormActivation::Relu6, NormActivation::HardSwish];
        for (dtype, weights) in [(DType::F16, DType::F32)].into_iter().chain(DTYPES.map(|dtype| (dtype, dtype))) {
            for (number, shape) in [[3, 5, 7, 11], [4, 3, 13, 1], [2, 8, 4, 4]].into_iter().enumerate() {
                for variant in 0..20 {
                    let activation = activations[variant % 5];
                    let (added, momentum) = (variant / 5 % 2 == 1, (variant < 10).then_some(0.1));
                    if added && activation == NormActivation::HardSwish {
                        continue;
                    }
                    let settings = NormSettings { epsilon: 1e-5, momentum, activation };
                    let what = format!("{dtype:?} {shape:?} {settings:?} {added}");
                    let (x, gradient) = (numbers(shape, 1, 3.0, dtype), numbers(shape, 2, 1.0, dtype));
                    let residual = added.then(|| numbers(shape, 7, 1.0, dtype));
                    let channels = [3, 4, 5, 6].map(|seed| numbers([shape[1]], seed + number as u64, 1.0, weights));
                    // A variance is positive.
                    let mut channels = channels;
                    channels[3] = <Flex as burn::backend::ops::FloatTensorOps<Flex>>::float_abs(channels[3].clone());
                    let kernel = flex::forward(x.clone(), residual.as_ref(), &channels, settings);
                    let composed = forward::<Flex>(x.clone(), residual, channels.clone(), settings);
                    assert_close(&composed.y, &kernel.y, &what);
                    for (composed, kernel) in composed.running.iter().zip(&kernel.running) {
                        assert_close(composed, kernel, &what);
                    }
                    let [weight, bias, ..] = channels;
                    let saved = BatchNormSaved {
                        x: Some(x),
                        y: added.then_some(kernel.y),
                        statistics: kernel.statistics,
                        weight,
                        bias,
                        settings,
                    };
                    let wanted = [true, true, true, added];
                    let kernel = flex::backward(&saved, gradient.clone(), wanted);
                    let composed = backward::<Flex>(saved, gradient, wanted);
                    for (composed, kernel) in composed.iter().zip(&kernel) {
                        assert_eq!(composed.is_some(), kernel.is_some(), "{what}");
                        if let (Some(composed), Some(kernel)) = (composed, kernel) {
                            assert_close(composed, kernel, &what);
                        }
                    }
                }
            }
        }
    }
}
