//! The layers of kiln-layers and burn's own operations on CUDA compared with the CPU device: values and gradients, in f32, f16 and bf16.

mod adapters;
mod images;

use burn::module::{Module, ModuleMapper, Param, RunningState};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::AdaptiveAvgPool2dConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, EmbeddingConfig, GroupNormConfig, LayerNormConfig, LinearConfig, RmsNormConfig,
};
use burn::tensor::activation::{gelu as burn_gelu, log_softmax};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use kiln_layers::{
    Activation, AttentionOptions, LinearCrossEntropy, Mask, NormActivation, Reduction, RotaryOptions,
    activation_linear, attention, batch_norm_activated, batch_norm_add_relu, embedding, gelu, gelu_tanh, group_norm,
    layer_norm, linear, norm_linear, norm_self_attention, relu, rms_norm, rotary, self_attention, silu, softmax,
    swiglu,
};

use crate::sim::{STRICT, dtypes, gpu, on_wgpu, with_card};

/// Pseudorandom numbers, equal on each call.
pub(crate) fn numbers<const D: usize>(shape: [usize; D], seed: u64, dtype: DType, device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(next).collect();
    Tensor::<D>::from_data(TensorData::new(values, shape), (device, DType::F32)).cast(dtype)
}

/// The mixing function of "splitmix32" (Ettinger).
pub(crate) fn mixed(number: u32) -> u32 {
    let number = (number ^ number >> 16).wrapping_mul(0x21F0_AAAD);
    let number = (number ^ number >> 15).wrapping_mul(0x735A_2D97);
    number ^ number >> 15
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.cast(DType::F32).into_data().iter::<f64>().collect()
}

/// The allowed error of a function relative to its largest value, in f32, f16 and bf16.
#[derive(Clone, Copy)]
enum Within {
    /// Sums in f32.
    Roundings,
    /// Products whose factors are rounded: to the 11 bits of TF32 in f32.
    Products,
    /// burn's GELU, since some compilers approximate the error function.
    Approximation,
}

impl Within {
    fn tolerance(self, dtype: DType) -> f64 {
        match (self, dtype) {
            // wgpu has no TF32.
            (Self::Products, DType::F32) if on_wgpu() => 2e-5,
            (Self::Products | Self::Approximation, DType::F32) => 2e-3,
            (Self::Roundings, DType::F32) => 2e-5,
            (_, DType::F16) => 4e-3,
            _ => 3e-2,
        }
    }
}

use Within::{Approximation, Products, Roundings};

/// Asserts that a function gives equal values and gradients of its inputs on both devices.
fn assert_same<const D: usize, const E: usize>(
    (what, within): (&str, Within),
    shapes: &[[usize; D]],
    dtype: DType,
    function: impl Fn(&[Tensor<D>], &Device) -> Tensor<E>,
) {
    let run = |device: Device| {
        let device = device.autodiff();
        let inputs: Vec<Tensor<D>> =
            (1..).zip(shapes).map(|(seed, shape)| numbers(*shape, seed, dtype, &device).require_grad()).collect();
        let y = function(&inputs, &device);
        let weights = numbers(y.dims(), 9, DType::F32, &device);
        let gradients = (y.clone().cast(DType::F32) * weights).sum().backward();
        let gradients = inputs.iter().map(|input| values(input.grad(&gradients).unwrap()));
        [values(y)].into_iter().chain(gradients).collect::<Vec<_>>()
    };
    let tolerance = within.tolerance(dtype);
    for (part, (got, expected)) in run(gpu()).iter().zip(&run(Device::flex())).enumerate() {
        let largest = expected.iter().fold(0.05f64, |largest, value| largest.max(value.abs()));
        assert_eq!(got.len(), expected.len(), "{what}");
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < tolerance * largest, "{what} {dtype:?} part {part}: {got}, {expected}");
        }
    }
}

#[test]
fn activations_and_norms() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            assert_same(("gelu", Roundings), &[[3, 5, 7]], dtype, |x, _| gelu(x[0].clone()).unwrap());
            assert_same(("gelu tanh", Roundings), &[[3, 5, 7]], dtype, |x, _| gelu_tanh(x[0].clone()).unwrap());
            assert_same(("silu", Roundings), &[[3, 5, 7]], dtype, |x, _| silu(x[0].clone()).unwrap());
            assert_same(("relu", Roundings), &[[3, 5, 7]], dtype, |x, _| relu(x[0].clone()).unwrap());
            assert_same(("layer norm", Roundings), &[[33, 19]], dtype, |x, device| {
                layer_norm(&LayerNormConfig::new(19).init(device), x[0].clone()).unwrap()
            });
            // More rows than cubes, and more places of a row than units.
            assert_same(("wide layer norm", Roundings), &[[300, 2100]], dtype, |x, device| {
                layer_norm(&LayerNormConfig::new(2100).init(device), x[0].clone()).unwrap()
            });
            assert_same(("rms norm", Roundings), &[[2, 9, 40]], dtype, |x, device| {
                rms_norm(&RmsNormConfig::new(40).init(device), x[0].clone()).unwrap()
            });
        }
    });
}

#[test]
fn batch_norms() {
    with_card(&STRICT, |_| {
        let leaky = NormActivation::LeakyRelu { slope: 0.1 };
        let relus =
            [NormActivation::None, NormActivation::Relu, leaky, NormActivation::Relu6, NormActivation::HardSwish];
        for dtype in dtypes() {
            // One channel at a time, several blocks of channels, many rows of few channels.
            for shape in [[3, 5, 7, 4], [2, 260, 5, 6], [5, 131, 9, 7], [4, 8, 40, 41]] {
                for (activation, training) in relus.into_iter().zip([true, false].into_iter().cycle()) {
                    let what = format!("batch norm {shape:?} {activation:?}");
                    assert_same((&what, Roundings), &[shape], dtype, |x, device| {
                        let norm = trained(shape[1], training, device);
                        batch_norm_activated(&norm, activation, x[0].clone() * 2.0 + 1.0).unwrap()
                    });
                }
                for training in [true, false] {
                    let what = format!("batch norm with a residual {shape:?} {training}");
                    assert_same((&what, Roundings), &[shape, shape], dtype, |x, device| {
                        let norm = trained(shape[1], training, device);
                        batch_norm_add_relu(&norm, x[0].clone(), x[1].clone()).unwrap()
                    });
                }
            }
        }
    });
}

#[test]
fn gradients_of_parameters() {
    // The place of the weight of the linear layer among the results.
    const WEIGHT: usize = 6;
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            for (rows, width) in [(1, 2), (7, 19), (300, 260), (1000, 2100)] {
                let run = |device: Device| {
                    let device = device.autodiff();
                    let x = || numbers([rows, width], 1, dtype, &device);
                    let weights = || numbers([rows, width], 2, DType::F32, &device);
                    let of_channels = trained(width, true, &device);
                    let y = batch_norm_activated(&of_channels, NormActivation::Relu, x()).unwrap();
                    let batch = (y.cast(DType::F32) * weights()).sum().backward();
                    let of_rows = LayerNormConfig::new(width).init(&device);
                    let row = (layer_norm(&of_rows, x()).unwrap().cast(DType::F32) * weights()).sum().backward();
                    let mut layer = LinearConfig::new(width, width).init(&device);
                    layer.weight = Param::from_tensor(numbers([width, width], 3, DType::F32, &device).require_grad());
                    let line = (linear(&layer, x()).unwrap().cast(DType::F32) * weights()).sum().backward();
                    let bias = |bias: &Option<Param<Tensor<1>>>| bias.as_ref().unwrap().val();
                    let of_layer = values(layer.weight.val().grad(&line).unwrap());
                    let of_bias = values(bias(&layer.bias).grad(&line).unwrap());
                    let of_norms =
                        [&of_channels.gamma, &of_channels.beta].map(|param| param.val().grad(&batch).unwrap());
                    let of_rows = [of_rows.gamma.val(), bias(&of_rows.beta)].map(|value| value.grad(&row).unwrap());
                    let running = [of_channels.running_mean, of_channels.running_var].map(|state| state.value_sync());
                    let all = of_norms.into_iter().chain(of_rows).chain(running.map(Tensor::inner)).map(values);
                    all.chain([of_layer, of_bias]).collect::<Vec<_>>()
                };
                let (got, expected) = (run(gpu()), run(Device::flex()));
                for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let within = if part == WEIGHT { Products } else { Roundings };
                    let largest = expected.iter().fold(0.05f64, |largest, value| largest.max(value.abs()));
                    for (got, expected) in got.iter().zip(expected) {
                        let close = (got - expected).abs() < within.tolerance(dtype) * largest;
                        assert!(close, "{dtype:?} {rows} x {width} part {part}: {got}, {expected}");
                    }
                }
            }
        }
    });
}

#[test]
fn gradients_of_embeddings() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            // Several cubes, ids that are not looked at in one round, one row for most ids, and rows without ids.
            for (rows, width, count) in [(1, 1, 1), (37, 12, 50), (700, 5, 2500), (9, 2100, 30)] {
                let ids: Vec<i64> = (0..count).map(|id| if id % 3 == 0 { id * id % rows } else { rows / 2 }).collect();
                let run = |device: Device, dtype: DType| {
                    let device = device.autodiff();
                    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids.clone(), [1, count as usize]), &device);
                    let [rows, width] = [rows as usize, width];
                    let mut words = module(|device| EmbeddingConfig::new(rows, width).init(device), &device, dtype);
                    words.weight = Param::from_tensor(words.weight.val().detach().require_grad());
                    let y = embedding(&words, ids).unwrap();
                    let weights = numbers(y.dims(), 4, DType::F32, &device);
                    let gradients = (y.clone().cast(DType::F32) * weights).sum().backward();
                    [values(y), values(words.weight.val().grad(&gradients).unwrap())]
                };
                // The CPU device would add in 16 bits.
                let (got, expected) = (run(gpu(), dtype), run(Device::flex(), DType::F32));
                for (got, expected) in got.iter().zip(&expected) {
                    let largest = expected.iter().fold(0.05f64, |largest, value| largest.max(value.abs()));
                    assert_eq!(got.len(), expected.len());
                    for (got, expected) in got.iter().zip(expected) {
                        let close = (got - expected).abs() < Roundings.tolerance(dtype) * largest;
                        assert!(close, "{dtype:?} {rows} x {width} at {count}: {got}, {expected}");
                    }
                }
            }
        }
    });
}

/// A batch norm with parameters and running statistics of its own for each channel, which trains or not.
fn trained(channels: usize, training: bool, device: &Device) -> BatchNorm {
    let of = |seed| numbers([channels], seed, DType::F32, device);
    let mut norm = BatchNormConfig::new(channels).init(device);
    norm.gamma = Param::from_tensor(of(21)).set_require_grad(true);
    norm.beta = Param::from_tensor(of(22)).set_require_grad(true);
    norm.running_mean = RunningState::new(of(23));
    norm.running_var = RunningState::new(of(24).abs() + 0.5);
    norm.training = Param::from_bool(training);
    norm
}

#[test]
fn attentions() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            assert_same(("self-attention", Products), &[[2, 19, 3 * 2 * 8]], dtype, |x, _| {
                self_attention(x[0].clone(), 2, Mask::Causal).unwrap()
            });
            assert_same(("attention", Products), &[[2, 4, 9, 8], [2, 2, 13, 8], [2, 2, 13, 8]], dtype, |x, device| {
                let hidden = Tensor::<2, Bool>::tril_mask([9, 13], 5, device).unsqueeze();
                let options = AttentionOptions::new().with_key_lengths(vec![13, 6]).with_masked(hidden);
                attention(x[0].clone(), x[1].clone(), x[2].clone(), options).unwrap()
            });
            // Heads that the kernels take in 16 bits: several blocks of queries and keys with odd ends, and heads that share keys.
            for (time, depth) in [(1, 16), (33, 16), (150, 64), (70, 128)] {
                for mask in [Mask::None, Mask::Causal] {
                    let what = format!("self-attention {time} x {depth} {mask:?}");
                    assert_same((&what, Products), &[[2, time, 3 * 2 * depth]], dtype, |x, _| {
                        self_attention(x[0].clone(), 2, mask).unwrap()
                    });
                }
            }
            for (time, keys) in [(40, 75), (75, 40)] {
                for mask in [Mask::None, Mask::Causal] {
                    let what = format!("attention {time} x {keys} {mask:?}");
                    let shapes = [[2, 4, time, 32], [2, 2, keys, 32], [2, 2, keys, 32]];
                    assert_same((&what, Products), &shapes, dtype, |x, _| {
                        attention(x[0].clone(), x[1].clone(), x[2].clone(), mask).unwrap()
                    });
                }
            }
            assert_same(("rotary", Roundings), &[[2, 3, 7, 8]], dtype, |x, _| {
                rotary(x[0].clone(), RotaryOptions::new()).unwrap()
            });
        }
    });
}

#[test]
fn dropout() {
    with_card(&STRICT, |_| {
        let device = gpu();
        let zeros = Tensor::<4>::zeros([1, 2, 64, 4], &device);
        let options = AttentionOptions::new().with_dropout(0.25, 7);
        let y = values(attention(zeros.clone(), zeros.clone(), zeros.ones_like(), options).unwrap());
        let mean = y.iter().sum::<f64>() / y.len() as f64;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
    });
}

#[test]
fn losses() {
    with_card(&STRICT, |_| {
        let targets = |device: &Device| {
            let targets: Vec<i64> = (0..13).map(|row| if row == 4 { -100 } else { row * 5 % 29 }).collect();
            Tensor::<1, Int>::from_data(TensorData::new(targets, [13]), device)
        };
        for dtype in dtypes() {
            for reduction in [Reduction::Mean, Reduction::None] {
                let loss = LinearCrossEntropy::new().with_ignore_index(-100).with_label_smoothing(0.1);
                let loss = loss.with_reduction(reduction);
                assert_same(("loss", Products), &[[13, 7], [7, 29], [1, 29]], dtype, |x, device| {
                    let bias = x[2].clone().reshape([29]);
                    loss.forward(x[0].clone(), x[1].clone(), Some(bias), targets(device)).unwrap()
                });
                assert_same(("loss without bias", Products), &[[13, 7], [7, 29]], dtype, |x, device| {
                    loss.forward(x[0].clone(), x[1].clone(), None, targets(device)).unwrap()
                });
                // Blocks of classes, by rows of the weight and by classes.
                assert_same(("many classes", Products), &[[13, 8], [8, 4101], [1, 4101]], dtype, |x, device| {
                    let bias = x[2].clone().reshape([4101]);
                    loss.forward(x[0].clone(), x[1].clone(), Some(bias), targets(device)).unwrap()
                });
                assert_same(("an embedding's classes", Products), &[[13, 8], [4101, 8]], dtype, |x, device| {
                    loss.forward(x[0].clone(), x[1].clone().transpose(), None, targets(device)).unwrap()
                });
                // Blocks that are views of the weight.
                assert_same(("classes of whole tiles", Products), &[[13, 64], [64, 4224]], dtype, |x, device| {
                    loss.forward(x[0].clone(), x[1].clone(), None, targets(device)).unwrap()
                });
                assert_same(("whole tiles of an embedding", Products), &[[13, 64], [4224, 64]], dtype, |x, device| {
                    loss.forward(x[0].clone(), x[1].clone().transpose(), None, targets(device)).unwrap()
                });
                // Three chunks, the last of which is short.
                assert_same(("chunks of the loss", Products), &[[1100, 5], [5, 9], [1, 9]], dtype, |x, device| {
                    let classes = (0..1100).map(|row| row * row % 11 - 1).collect();
                    let targets = Tensor::from_data(TensorData::new::<i64, _>(classes, [1100]), device);
                    let bias = x[2].clone().reshape([9]);
                    let weights = |length, seed| numbers([length], seed, DType::F32, device).abs();
                    let loss = loss.clone().with_class_weights(weights(9, 31));
                    loss.forward_weighted(x[0].clone(), x[1].clone(), Some(bias), targets, weights(1100, 32)).unwrap()
                });
            }
        }
    });
}

#[test]
fn rows_and_groups() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            assert_same(("softmax", Roundings), &[[3, 5, 7]], dtype, |x, _| softmax(x[0].clone()).unwrap());
            assert_same(("SwiGLU", Roundings), &[[3, 5], [3, 5]], dtype, |x, _| {
                swiglu(x[0].clone(), x[1].clone()).unwrap()
            });
            assert_same(("group norm", Roundings), &[[2, 4, 5, 3]], dtype, |x, device| {
                group_norm(&GroupNormConfig::new(2, 4).init(device), x[0].clone()).unwrap()
            });
        }
    });
}

/// A module on `device`, with the same parameters on every device.
fn module<M: Module>(make: impl Fn(&Device) -> M, device: &Device, dtype: DType) -> M {
    struct Fill(u64, DType);
    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            let (seed, dtype) = (self.0, self.1);
            param.map(|tensor| numbers(tensor.dims(), seed, dtype, &tensor.device()) * 0.3)
        }
    }
    make(device).map(&mut Fill(100, dtype))
}

#[test]
fn products() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            let own = |device: &Device| module(|device| LinearConfig::new(19, 37).init(device), device, dtype);
            assert_same(("burn's linear", Products), &[[13, 19]], dtype, |x, device| own(device).forward(x[0].clone()));
            assert_same(("linear", Products), &[[13, 19]], dtype, |x, device| {
                linear(&own(device), x[0].clone()).unwrap()
            });
            assert_same(("norm and linear", Products), &[[13, 19]], dtype, |x, device| {
                let norm = module(|device| LayerNormConfig::new(19).init(device), device, dtype);
                norm_linear(&norm, &own(device), x[0].clone()).unwrap()
            });
            assert_same(("GELU and linear", Products), &[[13, 19]], dtype, |x, device| {
                activation_linear(Activation::GeluTanh, &own(device), x[0].clone()).unwrap()
            });
            assert_same(("attention of a norm", Products), &[[2, 9, 16]], dtype, |x, device| {
                let norm = module(|device| LayerNormConfig::new(16).init(device), device, dtype);
                let qkv = module(|device| LinearConfig::new(16, 48).init(device), device, dtype);
                norm_self_attention(&norm, &qkv, x[0].clone(), 2, Mask::Causal).unwrap()
            });
            assert_same(("product of batches", Products), &[[3, 7, 5], [3, 5, 11]], dtype, |x, _| {
                x[0].clone().matmul(x[1].clone())
            });
        }
    });
}

#[test]
fn operations_of_burn() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            // burn's derivative follows the tanh formula on CUDA, and is exact on the CPU device.
            assert_same(("GELU", Approximation), &[[3, 37]], dtype, |x, _| burn_gelu(x[0].clone()));
            assert_same(("logarithm of softmax", Roundings), &[[3, 37]], dtype, |x, _| log_softmax(x[0].clone(), 1));
            assert_same(("sums", Roundings), &[[5, 131]], dtype, |x, _| {
                x[0].clone().sum_dim(1) + x[0].clone().mean_dim(1)
            });
            assert_same(("pooling", Roundings), &[[2, 3, 7, 5]], dtype, |x, _| {
                AdaptiveAvgPool2dConfig::new([1, 1]).init().forward(x[0].clone())
            });
            assert_same(("slices", Roundings), &[[4, 9, 3]], dtype, |x, _| {
                Tensor::cat(vec![x[0].clone().slice([0..2, 1..8]), x[0].clone().slice([2..4, 0..7])], 0)
            });
            assert_same(("embedding", Roundings), &[[1, 1]], dtype, |x, device| {
                let words = module(|device| EmbeddingConfig::new(11, 5).init(device), device, dtype);
                let ids = Tensor::<2, Int>::from_data([[3, 3, 10], [0, 7, 3]], device);
                words.forward(ids).reshape([6, 5]) * x[0].clone()
            });
            assert_same(("cross-entropy", Roundings), &[[6, 11]], dtype, |x, device| {
                let targets = Tensor::<1, Int>::from_data([3, 3, 10, 0, 7, 3], device);
                let loss = CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(device);
                loss.forward(x[0].clone().cast(DType::F32), targets)
            });
        }
    });
}
