//! The layers on CubeCL's CPU runtime beside the CPU device, values and gradients, in f32 and f16. (The runtime does not compute bf16.)

use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{BatchNormConfig, GroupNormConfig, LayerNormConfig, PaddingConfig2d};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use kiln_layers::{
    AttentionOptions, LinearCrossEntropy, Mask, Reduction, RotaryOptions, add_relu, attention, batch_norm_add_relu,
    batch_norm_relu, gelu, gelu_tanh, group_norm, layer_norm, max_pool2d, relu, rotary, self_attention, silu, softmax,
    swiglu,
};

/// Numbers that look random and are always the same.
fn numbers<const D: usize>(shape: [usize; D], seed: u64, dtype: DType, device: &Device) -> Tensor<D> {
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

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.cast(DType::F32).into_data().iter::<f64>().collect()
}

/// Asserts that a function gives on both devices the same values and gradients of its inputs, up to some roundings.
fn assert_same<const D: usize, const E: usize>(
    what: &str,
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
    let tolerance = if dtype == DType::F32 { 2e-5 } else { 3e-3 };
    for (part, (got, expected)) in run(Device::cpu()).iter().zip(&run(Device::flex())).enumerate() {
        let largest = expected.iter().fold(0.05f64, |largest, value| largest.max(value.abs()));
        assert_eq!(got.len(), expected.len(), "{what}");
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < tolerance * largest, "{what} {dtype:?} part {part}: {got}, {expected}");
        }
    }
}

const DTYPES: [DType; 2] = [DType::F32, DType::F16];

#[test]
fn activations_and_norms() {
    for dtype in DTYPES {
        assert_same("gelu", &[[3, 5, 7]], dtype, |x, _| gelu(x[0].clone()).unwrap());
        assert_same("gelu tanh", &[[3, 5, 7]], dtype, |x, _| gelu_tanh(x[0].clone()).unwrap());
        assert_same("silu", &[[3, 5, 7]], dtype, |x, _| silu(x[0].clone()).unwrap());
        assert_same("relu", &[[3, 5, 7]], dtype, |x, _| relu(x[0].clone()).unwrap());
        assert_same("layer norm", &[[33, 19]], dtype, |x, device| {
            layer_norm(&LayerNormConfig::new(19).init(device), x[0].clone()).unwrap()
        });
        assert_same("batch norm", &[[3, 5, 7, 4]], dtype, |x, device| {
            batch_norm_relu(&BatchNormConfig::new(5).init(device), x[0].clone()).unwrap()
        });
    }
}

#[test]
fn attentions() {
    for dtype in DTYPES {
        assert_same("self-attention", &[[2, 19, 3 * 2 * 8]], dtype, |x, _| {
            self_attention(x[0].clone(), 2, Mask::Causal).unwrap()
        });
        assert_same("attention", &[[2, 4, 9, 8], [2, 2, 13, 8], [2, 2, 13, 8]], dtype, |x, device| {
            let hidden = Tensor::<2, Bool>::tril_mask([9, 13], 5, device).unsqueeze();
            let options = AttentionOptions::new().with_key_lengths(vec![13, 6]).with_masked(hidden);
            attention(x[0].clone(), x[1].clone(), x[2].clone(), options).unwrap()
        });
        assert_same("rotary", &[[2, 3, 7, 8]], dtype, |x, _| rotary(x[0].clone(), RotaryOptions::new()).unwrap());
    }
}

#[test]
fn dropout() {
    let device = Device::cpu();
    let zeros = Tensor::<4>::zeros([1, 2, 64, 4], &device);
    let options = AttentionOptions::new().with_dropout(0.25, 7);
    let y = values(attention(zeros.clone(), zeros.clone(), zeros.ones_like(), options).unwrap());
    let mean = y.iter().sum::<f64>() / y.len() as f64;
    assert!((mean - 1.0).abs() < 0.03, "{mean}");
}

#[test]
fn losses() {
    let targets = |device: &Device| {
        let targets: Vec<i64> = (0..13).map(|row| if row == 4 { -100 } else { row * 5 % 29 }).collect();
        Tensor::<1, Int>::from_data(TensorData::new(targets, [13]), device)
    };
    for dtype in DTYPES {
        for reduction in [Reduction::Mean, Reduction::None] {
            let loss = LinearCrossEntropy::new().with_ignore_index(-100).with_label_smoothing(0.1);
            let loss = loss.with_reduction(reduction);
            assert_same("loss", &[[13, 7], [7, 29], [1, 29]], dtype, |x, device| {
                let bias = x[2].clone().reshape([29]);
                loss.forward(x[0].clone(), x[1].clone(), Some(bias), targets(device)).unwrap()
            });
            assert_same("loss without bias", &[[13, 7], [7, 29]], dtype, |x, device| {
                loss.forward(x[0].clone(), x[1].clone(), None, targets(device)).unwrap()
            });
        }
    }
}

#[test]
fn images() {
    for dtype in DTYPES {
        assert_same("add and ReLU", &[[3, 5], [3, 5]], dtype, |x, _| add_relu(x[0].clone(), x[1].clone()).unwrap());
        assert_same("max pooling", &[[2, 3, 7, 9]], dtype, |x, _| {
            let pool = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]);
            max_pool2d(&pool.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(), x[0].clone()).unwrap()
        });
        assert_same("batch norm with a residual", &[[3, 5, 7, 4], [3, 5, 7, 4]], dtype, |x, device| {
            batch_norm_add_relu(&BatchNormConfig::new(5).init(device), x[0].clone(), x[1].clone()).unwrap()
        });
    }
}

#[test]
fn rows_and_groups() {
    for dtype in DTYPES {
        assert_same("softmax", &[[3, 5, 7]], dtype, |x, _| softmax(x[0].clone()).unwrap());
        assert_same("SwiGLU", &[[3, 5], [3, 5]], dtype, |x, _| swiglu(x[0].clone(), x[1].clone()).unwrap());
        assert_same("group norm", &[[2, 4, 5, 3]], dtype, |x, device| {
            group_norm(&GroupNormConfig::new(2, 4).init(device), x[0].clone()).unwrap()
        });
    }
    let y = values(kiln_layers::dropout(Tensor::<2>::ones([64, 64], &Device::cpu()), 0.25, 7).unwrap());
    let mean = y.iter().sum::<f64>() / y.len() as f64;
    assert!((mean - 1.0).abs() < 0.03, "{mean}");
}
