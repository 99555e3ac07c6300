//! Batch norm and the activation after it, compared with burn's own module and with plain formulas.

use burn::backend::ir::OperationIr;
use burn::backend::{Autodiff, AutodiffBackend, Capture};
use burn::module::{Param, RunningState};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::activation::{hard_swish, leaky_relu, relu};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{
    Error, NormActivation, batch_norm, batch_norm_activated, batch_norm_add_relu, batch_norm_leaky_relu,
    batch_norm_relu,
};

use crate::compare::{distance, numbers, tensor, tolerance, values};

const SLOPE: f64 = 0.1;

/// A layer: name, this crate's function, burn's function. The second tensor is the residual.
type Layer = fn(&BatchNorm, Tensor<4>, Tensor<4>) -> Tensor<4>;
const ALL: [(&str, Layer, Layer); 6] = [
    ("none", |norm, x, _| batch_norm(norm, x).unwrap(), |norm, x, _| norm.forward(x)),
    ("relu", |norm, x, _| batch_norm_relu(norm, x).unwrap(), |norm, x, _| relu(norm.forward(x))),
    (
        "leaky",
        |norm, x, _| batch_norm_leaky_relu(norm, x, SLOPE).unwrap(),
        |norm, x, _| leaky_relu(norm.forward(x), SLOPE),
    ),
    (
        "relu6",
        |norm, x, _| batch_norm_activated(norm, NormActivation::Relu6, x).unwrap(),
        |norm, x, _| relu(norm.forward(x)).clamp_max(6.0),
    ),
    (
        "hard swish",
        |norm, x, _| batch_norm_activated(norm, NormActivation::HardSwish, x).unwrap(),
        |norm, x, _| hard_swish(norm.forward(x)),
    ),
    (
        "add relu",
        |norm, x, residual| batch_norm_add_relu(norm, x, residual).unwrap(),
        |norm, x, residual| relu(norm.forward(x) + residual),
    ),
];

fn module(channels: usize, device: &Device) -> BatchNorm {
    let mut norm = BatchNormConfig::new(channels).init(device);
    let number = |seed, add: f32| tensor([channels], seed, 0.5, DType::F32, device) + add;
    norm.gamma = norm.gamma.map(|_| number(2, 1.0).set_require_grad(device.is_autodiff()));
    norm.beta = norm.beta.map(|_| number(3, 0.0).set_require_grad(device.is_autodiff()));
    norm
}

/// Makes the norm use running statistics that differ from those of a new norm.
fn evaluated(mut norm: BatchNorm) -> BatchNorm {
    let [channels] = norm.gamma.val().dims();
    let device = norm.gamma.val().device();
    norm.running_mean = RunningState::new(tensor([channels], 5, 1.0, DType::F32, &device));
    norm.running_var = RunningState::new(tensor([channels], 6, 0.5, DType::F32, &device) + 1.0);
    norm.training = Param::from_bool(false);
    norm
}

/// Output, gradients of input, residual, weight and bias, and the new running statistics.
fn all(norm: &BatchNorm, x: &Tensor<4>, gradient: &Tensor<4>, f: Layer) -> Vec<Vec<f64>> {
    // The residual is rounded to bf16, whose values both other dtypes hold.
    let residual = tensor(x.dims(), 7, 1.0, DType::BF16, &x.device()).cast(x.dtype()).require_grad();
    let x = x.clone().require_grad();
    let y = f(norm, x.clone(), residual.clone());
    let gradients = (y.clone().cast(DType::F32) * gradient.clone()).sum().backward();
    let (weight, bias) = (norm.gamma.val().grad(&gradients).unwrap(), norm.beta.val().grad(&gradients).unwrap());
    let of_residual = residual.grad(&gradients).map_or(vec![], |gradient| values(&gradient));
    let statistics = [values(&norm.running_mean.value_sync()), values(&norm.running_var.value_sync())];
    let parts = vec![values(&y), values(&x.grad(&gradients).unwrap()), of_residual, values(&weight), values(&bias)];
    [parts, statistics.to_vec()].concat()
}

/// The largest factor of a gradient of the normalised values on its way to the input: weight / deviation. The gradient of the input is a
/// difference of such terms, which may cancel to the rounding of the terms: with two values in a channel it is close to zero.
fn largest_scale(norm: &BatchNorm, x: &Tensor<4>) -> f64 {
    let channels = x.dims()[1];
    let rows = x.clone().cast(DType::F32).swap_dims(0, 1).reshape([channels as i32, -1]);
    let variance = match norm.training.is_enabled() {
        true => values(&rows.var_bias(1)),
        false => values(&norm.running_var.value_sync()),
    };
    let scales = values(&norm.gamma.val()).into_iter().zip(variance).map(|(w, v)| w.abs() / (v + norm.epsilon).sqrt());
    scales.fold(0.0, f64::max)
}

fn compare(label: &str, norm: impl Fn() -> BatchNorm, x: &Tensor<4>, f: [Layer; 2], factor: f64) {
    let gradient = tensor(x.dims(), 4, 1.0, DType::F32, &x.device());
    let got = all(&norm(), x, &gradient, f[0]);
    let expected = all(&norm(), &x.clone().cast(DType::F32), &gradient, f[1]);
    for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let largest = expected.iter().fold(1e-6f64, |largest, value| largest.max(value.abs()));
        let terms = if part == 1 { largest_scale(&norm(), x) } else { 0.0 };
        let far = distance(got, expected) * largest / largest.max(terms);
        assert!(far < factor * tolerance(x.dtype()), "{label} part {part}: {far}");
    }
}

#[test]
fn values_gradients_and_statistics_are_those_of_burn() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        // Planes of one value, of some, and of several pieces; more samples than a strip has.
        for shape in [[2, 1, 1, 1], [7, 70, 1, 1], [3, 5, 7, 11], [4, 16, 13, 8], [2, 2, 53, 41], [300, 3, 2, 3]] {
            let x = tensor(shape, 1, 2.0, dtype, &device) + 0.5;
            for (name, ours, burns) in ALL {
                for training in [true, false] {
                    let norm = || match training {
                        true => module(shape[1], &device),
                        false => evaluated(module(shape[1], &device)),
                    };
                    let label = format!("{name} {dtype:?} {shape:?} training {training}");
                    compare(&label, norm, &x, [ours, burns], 2.0);
                }
            }
        }
    }
}

#[test]
fn inputs_of_other_ranks_and_views_are_computed() {
    let device = Device::flex().autodiff();
    let flat = tensor([37, 19], 1, 1.0, DType::F32, &device);
    let (ours, burns) = (batch_norm_relu(&module(19, &device), flat.clone()).unwrap(), module(19, &device));
    assert!(distance(&values(&ours), &values(&relu(burns.forward(flat)))) < 3e-5);
    for (name, ours, burns) in ALL {
        let x = tensor([7, 9, 6, 10], 1, 1.0, DType::F32, &device);
        let view = x.slice([1..6, 2..9, 0..5, 3..9]).swap_dims(0, 2).swap_dims(1, 3);
        compare(name, || module(6, &device), &view, [ours, burns], 1.0);
    }
}

#[test]
fn evaluation_on_a_device_without_gradients_is_that_of_burn() {
    let device = Device::flex();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let norm = evaluated(module(6, &device));
        let x = tensor([3, 6, 5, 5], 1, 2.0, dtype, &device);
        for (name, ours, burns) in ALL {
            let residual = tensor([3, 6, 5, 5], 7, 1.0, dtype, &device);
            let expected = burns(&norm, x.clone().cast(DType::F32), residual.clone().cast(DType::F32));
            let got = ours(&norm, x.clone(), residual);
            assert!(distance(&values(&got), &values(&expected)) < tolerance(dtype), "{name} {dtype:?}");
            assert_eq!(got.dtype(), dtype);
        }
    }
}

#[test]
fn an_input_that_nobody_else_holds_is_overwritten() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        for dtype in [DType::F32, DType::BF16] {
            for (name, ours, _) in ALL {
                let x = || tensor([5, 6, 33, 40], 1, 2.0, dtype, &device);
                let (norm, residual, held) = (module(6, &device), x() * 0.5, x());
                let expected = values(&ours(&norm, held.clone(), residual.clone()));
                assert_eq!(values(&ours(&norm, x(), residual)), expected, "{name}");
                assert_eq!(values(&held), values(&x()), "{name}");
            }
        }
    }
}

#[test]
fn a_large_mean_costs_no_accuracy() {
    let device = Device::flex().autodiff();
    for mean in [0.0, 1000.0, 30_000.0] {
        let x = tensor([8, 3, 9, 9], 1, 1.0, DType::F32, &device) + mean;
        let gradient = tensor([8, 3, 9, 9], 4, 1.0, DType::F32, &device);
        let norm = module(3, &device);
        let got = all(&norm, &x, &gradient, ALL[0].1);
        let (x, gradient) = (values(&x), values(&gradient));
        let (weight, bias) = (values(&norm.gamma.val()), values(&norm.beta.val()));
        let (mut y, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for channel in 0..3 {
            let at: Vec<usize> = (0..x.len()).filter(|at| at / 81 % 3 == channel).collect();
            let average = |of: &dyn Fn(usize) -> f64| at.iter().map(|at| of(*at)).sum::<f64>() / at.len() as f64;
            let mean = average(&|at| x[at]);
            let deviation = (average(&|at| (x[at] - mean).powi(2)) + 1e-5).sqrt();
            let normal = |at: usize| (x[at] - mean) / deviation;
            let (sum, product) = (average(&|at| gradient[at]), average(&|at| gradient[at] * normal(at)));
            for at in &at {
                y[*at] = normal(*at) * weight[channel] + bias[channel];
                dx[*at] = weight[channel] / deviation * (gradient[*at] - sum - normal(*at) * product);
            }
        }
        let far = [distance(&got[0], &y), distance(&got[1], &dx)];
        assert!(far[0] < 1e-6 && far[1] < 1e-6, "{mean}: {far:?}");
    }
}

/// Checks that differences to burn's gradients come from signs: burn and this crate compute the value before ReLU with different
/// roundings.
#[test]
fn gradients_differ_from_those_of_burn_only_where_a_sign_is_within_rounding_of_zero() {
    let device = Device::flex().autodiff();
    let (mut signs, shape) = (0, [8, 4, 16, 16]);
    for seed in 1..40 {
        // There are few different values around zero and no bias, so many values before ReLU are rounding errors of zero.
        let few = numbers(shape.iter().product(), seed, 3.0).into_iter().map(f32::round).collect::<Vec<_>>();
        let few = [few.clone(), few.iter().map(|value| -value).collect()].concat();
        let x = Tensor::<1>::from_floats(few.as_slice(), &device).reshape([16, 4, 16, 16]);
        let x = if seed % 2 == 0 { tensor([16, 4, 16, 16], seed, 1.0, DType::F32, &device) } else { x + 0.1 };
        let gradient = tensor([16, 4, 16, 16], seed + 100, 1.0, DType::F32, &device);
        let norm = || BatchNormConfig::new(4).init(&device);
        let between = values(&norm().forward(x.clone()));
        let got = all(&norm(), &x, &gradient, ALL[1].1);
        let expected = all(&norm(), &x, &gradient, ALL[1].2);
        let differ: Vec<usize> =
            (0..between.len()).filter(|at| (got[0][*at] > 0.0) != (expected[0][*at] > 0.0)).collect();
        for at in &differ {
            assert!(between[*at].abs() < 1e-6, "{seed}: {}", between[*at]);
        }
        let far = distance(&got[1], &expected[1]);
        assert!(far < 1e-5 || !differ.is_empty(), "{seed}: {far}");
        signs += differ.len();
    }
    // Otherwise the test would not check anything.
    assert!(signs > 0);
}

#[test]
fn leaky_relu_keeps_the_input_where_the_output_does_not_give_it_back() {
    let device = Device::flex().autodiff();
    for (weight, bias) in [(0.0, 0.3), (1e-3, 0.0), (0.1, 0.4), (1e-3, 3.0), (0.5, 100.0)] {
        let norm = || {
            let mut norm = module(4, &device);
            norm.gamma = norm.gamma.map(|_| Tensor::<1>::from_floats([1.0, weight, 2.0, 1.0], &device).require_grad());
            norm.beta = norm.beta.map(|_| Tensor::<1>::from_floats([0.0, bias, 1.0, 1.0], &device).require_grad());
            norm
        };
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let x = tensor([5, 4, 6, 7], 1, 2.0, dtype, &device);
            compare(&format!("{weight} {bias} {dtype:?}"), norm, &x, [ALL[2].1, ALL[2].2], 2.0);
        }
    }
}

#[test]
fn only_wanted_gradients_come_out() {
    let device = Device::flex().autodiff();
    let x = tensor([4, 5, 6, 6], 1, 1.0, DType::F32, &device);
    for (name, ours, _) in ALL {
        for training in [true, false] {
            let norm = module(5, &device);
            let mut norm = if training { norm } else { evaluated(norm) };
            let gradient = tensor(x.dims(), 4, 1.0, DType::F32, &device);
            let expected = all(&norm, &x, &gradient, ours);
            for wanted in 1..8 {
                let wants = |bit: usize| wanted >> bit & 1 == 1;
                norm.gamma = norm.gamma.map(|weight| weight.detach().set_require_grad(wants(1)));
                norm.beta = norm.beta.map(|bias| bias.detach().set_require_grad(wants(2)));
                let x = x.clone().set_require_grad(wants(0));
                let residual = tensor(x.dims(), 7, 1.0, DType::BF16, &device).cast(DType::F32);
                let gradients = (ours(&norm, x.clone(), residual) * gradient.clone()).sum().backward();
                let got = [
                    x.grad(&gradients).map(|gradient| values(&gradient)),
                    norm.gamma.val().grad(&gradients).map(|gradient| values(&gradient)),
                    norm.beta.val().grad(&gradients).map(|gradient| values(&gradient)),
                ];
                for (at, (got, expected)) in got.iter().zip([&expected[1], &expected[3], &expected[4]]).enumerate() {
                    assert_eq!(got.is_some(), wants(at), "{name} {wanted}");
                    if let Some(got) = got {
                        assert!(distance(got, expected) < 1e-5, "{name} {training} {wanted} {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn nan_infinity_and_no_samples() {
    let device = Device::flex().autodiff();
    let mut numbers = numbers(2 * 3 * 4, 1, 1.0);
    (numbers[1], numbers[6], numbers[7]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let x = Tensor::<1>::from_floats(numbers.as_slice(), &device).reshape([2, 3, 2, 2]);
    let y = values(&batch_norm_relu(&evaluated(module(3, &device)), x.clone()).unwrap());
    assert!(y[1].is_nan() && y[6] == f64::INFINITY && y[7] == 0.0 && y.iter().filter(|y| !y.is_finite()).count() == 2);
    let swish = batch_norm_activated(&evaluated(module(3, &device)), NormActivation::HardSwish, x.clone()).unwrap();
    let swish = values(&swish);
    assert!(swish[1].is_nan() && swish[6] == f64::INFINITY && swish[7] == 0.0);
    assert_eq!(swish.iter().filter(|y| !y.is_finite()).count(), 2);
    // A channel with NaN is NaN; the last channel has none.
    let y = values(&batch_norm_relu(&module(3, &device), x).unwrap());
    assert!(y[..8].iter().all(|y| y.is_nan()) && y[8..12].iter().all(|y| y.is_finite()));

    for (name, ours, _) in ALL {
        let norm = module(3, &device);
        let x = Tensor::<4>::zeros([0, 3, 4, 4], &device).require_grad();
        let y = ours(&norm, x.clone(), Tensor::zeros([0, 3, 4, 4], &device));
        let gradients = y.sum().backward();
        assert_eq!(x.grad(&gradients).unwrap().dims(), [0, 3, 4, 4], "{name}");
        assert_eq!(values(&norm.gamma.val().grad(&gradients).unwrap()), [0.0; 3], "{name}");
        assert_eq!(values(&norm.running_var.value_sync()), [1.0; 3], "{name}");
    }
}

#[test]
fn same_bits_for_one_to_four_threads() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::BF16] {
        for shape in [[9, 40, 5, 5], [3, 2, 190, 200], [400, 3, 1, 1]] {
            let run = || {
                let x = tensor(shape, 1, 1.0, dtype, &device);
                let gradient = tensor(shape, 4, 1.0, DType::F32, &device);
                ALL.map(|(_, ours, _)| all(&module(shape[1], &device), &x, &gradient, ours))
            };
            let on = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run);
            let expected = on(1);
            for threads in 2..=4 {
                assert_eq!(on(threads), expected, "{shape:?} {threads} threads");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let device = Device::flex();
    let norm = module(3, &device);
    let x = |channels: usize| Tensor::<4>::zeros([2, channels, 2, 2], &device);
    let message = |result: Result<Tensor<4>, Error>| result.unwrap_err().to_string();
    assert_eq!(
        message(batch_norm(&norm, x(4))),
        "the number of channels of the input is 4, and the length of the weight is 3; expected the same"
    );
    assert_eq!(
        message(batch_norm_add_relu(&norm, x(3), x(4))),
        "a dimension of the input is 3, and the same dimension of the residual is 4; expected the same"
    );
    assert_eq!(
        message(batch_norm_add_relu(&norm, x(3), x(3).cast(DType::F16))),
        "the input is F32, and the residual is F16; expected the same"
    );
    for slope in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let text = message(batch_norm_leaky_relu(&norm, x(3), slope));
        assert_eq!(text, format!("the slope of leaky ReLU is {slope}, expected a positive number"));
    }
    let line = batch_norm(&norm, Tensor::<1>::zeros([3], &device)).unwrap_err().to_string();
    assert!(line.starts_with("the number of dimensions of the input is 1, expected at least 2"), "{line}");
}

/// The ids and the numbers of inputs and outputs of the operations that a step records.
fn recorded(training: bool, layer: impl Fn(&BatchNorm, Tensor<4>) -> Tensor<4>) -> Vec<(String, usize, usize)> {
    let plain = Device::capture();
    let step = || {
        let device = plain.clone().autodiff();
        let mut norm = BatchNormConfig::new(3).init(&device);
        norm.training = Param::from_bool(training);
        // Burn does not move tensors to this device with autodiff, not even those that are there.
        norm.running_mean = RunningState::new(Tensor::zeros([3], &plain));
        norm.running_var = RunningState::new(Tensor::ones([3], &plain));
        let y = layer(&norm, Tensor::<4>::zeros([2, 3, 8, 8], &device).require_grad());
        assert_eq!(y.dims(), [2, 3, 8, 8]);
        let loss = y.sum().try_into_primitive::<Autodiff<Capture>>().unwrap();
        std::mem::forget((norm, Autodiff::<Capture>::backward(loss)));
    };
    let captured = plain.capture_scope(|scope| {
        step();
        scope.complete([], [])
    });
    let id = |operation: &OperationIr| match operation {
        OperationIr::Custom(custom) => Some((custom.id.clone(), custom.inputs.len(), custom.outputs.len())),
        _ => None,
    };
    captured.unwrap().graph.operations.iter().filter_map(id).collect()
}

#[test]
fn a_norm_is_recorded_as_one_operation_each_way() {
    let both = |inputs: usize, outputs: [usize; 2], kept: usize| {
        let forward = ("kiln::batch_norm".to_owned(), inputs, outputs[0]);
        // The inputs are gradient, saved tensors, statistics, weight and bias.
        vec![forward, ("kiln::batch_norm_backward".to_owned(), 4 + kept, outputs[1])]
    };
    assert_eq!(recorded(true, |norm, x| batch_norm_relu(norm, x).unwrap()), both(5, [4, 3], 1));
    assert_eq!(recorded(true, |norm, x| batch_norm_leaky_relu(norm, x, SLOPE).unwrap()), both(5, [4, 3], 1));
    assert_eq!(recorded(true, |norm, x| batch_norm_add_relu(norm, x.clone(), x).unwrap()), both(6, [4, 4], 2));
    assert_eq!(recorded(false, |norm, x| batch_norm_relu(norm, x).unwrap()), both(5, [2, 3], 1));
    for training in [true, false] {
        let hard_swish = |norm: &BatchNorm, x| batch_norm_activated(norm, NormActivation::HardSwish, x).unwrap();
        assert_eq!(recorded(training, hard_swish), both(5, [if training { 4 } else { 2 }, 3], 1));
    }
}
