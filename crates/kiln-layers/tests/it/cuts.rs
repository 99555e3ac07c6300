//! A sample has the same bits in a batch of any size: its outputs and the gradient of its input. What a cut of a batch changes are then only
//! sums over samples.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::Conv2dConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{EmbeddingConfig, GroupNormConfig, LayerNormConfig, LinearConfig, PaddingConfig2d};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_layers::{
    Activation, LinearCrossEntropy, Mask, Reduction, RotaryOptions, activation_linear, add_relu, conv2d, embedding,
    gelu, group_norm, layer_norm, linear, max_pool2d, norm_linear, norm_self_attention, rotary, self_attention,
    softmax, swiglu, upsample_conv2d,
};
use proptest::prelude::*;

use crate::compare::{config, tensor, values};

/// Outputs, and gradients of the input.
fn run<const D: usize, const E: usize>(
    x: Tensor<D>,
    dy: Tensor<E>,
    f: impl Fn(Tensor<D>) -> Tensor<E>,
) -> [Vec<f64>; 2] {
    let x = x.require_grad();
    let y = f(x.clone());
    let gradients = (y.clone() * dy).sum().backward();
    [values(&y), values(&x.grad(&gradients).unwrap())]
}

/// Compares a batch with its two parts.
fn same<const D: usize, const E: usize>(
    name: &str,
    (x, cut): (Tensor<D>, usize),
    f: impl Fn(Tensor<D>) -> Tensor<E>,
) -> Result<(), TestCaseError> {
    let shape = f(x.clone()).dims();
    let dy = tensor(shape, 9, 1.0, x.dtype(), &x.device());
    let (samples, per) = (x.dims()[0], shape[0] / x.dims()[0]);
    let part = |from: usize, to: usize| {
        run(x.clone().narrow(0, from, to - from), dy.clone().narrow(0, from * per, (to - from) * per), &f)
    };
    let (whole, [first, second]) = (run(x.clone(), dy.clone(), &f), [part(0, cut), part(cut, samples)]);
    for (what, (whole, parts)) in
        ["output", "gradient"].into_iter().zip(whole.into_iter().zip(first.into_iter().zip(second)))
    {
        let parts = [parts.0, parts.1].concat();
        let differs = whole.iter().zip(&parts).filter(|(whole, part)| whole.to_bits() != part.to_bits()).count();
        prop_assert_eq!(differs, 0, "{} of {} values of the {} of {} differ", differs, whole.len(), what, name);
    }
    Ok(())
}

/// Casts parameters.
struct To(DType);

impl ModuleMapper for To {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(self.0).detach().require_grad())
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn rows_have_the_same_bits_in_any_batch(
        samples in 2_usize..9,
        at in 0_usize..8,
        time in prop::sample::select(vec![1_usize, 3, 16, 65]),
        heads in 1_usize..4,
        depth in prop::sample::select(vec![2_usize, 8, 22, 64]),
        outputs in prop::sample::select(vec![1_usize, 7, 48, 130]),
        dtype in prop::sample::select(vec![DType::F32, DType::BF16]),
    ) {
        let (device, cut, width) = (device(), 1 + at % (samples - 1), heads * depth);
        let x = (tensor([samples, time, width], 1, 1.0, dtype, &device), cut);
        let norm = LayerNormConfig::new(width).init(&device);
        let [layer, qkv] = [outputs, 3 * width].map(|outputs| LinearConfig::new(width, outputs).init(&device));
        same("linear", x.clone(), |x| linear(&layer, x).unwrap())?;
        same("norm_linear", x.clone(), |x| norm_linear(&norm, &layer, x).unwrap())?;
        same("activation_linear", x.clone(), |x| activation_linear(Activation::Gelu, &layer, x).unwrap())?;
        same("layer_norm", x.clone(), |x| layer_norm(&norm, x).unwrap())?;
        same("gelu", x.clone(), |x| gelu(x).unwrap())?;
        same("softmax", x.clone(), |x| softmax(x).unwrap())?;
        same("swiglu", x.clone(), |x| swiglu(x.clone(), x.clone().neg()).unwrap())?;
        same("add_relu", x.clone(), |x| add_relu(x.clone(), x.clone() * 0.5).unwrap())?;
        same("rotary", x.clone(), |x| rotary(x, RotaryOptions::default()).unwrap())?;
        same("attention", x.clone(), |x| norm_self_attention(&norm, &qkv, x, heads, Mask::Causal).unwrap())?;
        same("self_attention", (tensor([samples, time, 3 * width], 2, 1.0, dtype, &device), cut), |x| {
            self_attention(x, heads, Mask::Causal).unwrap()
        })?;
        let targets = |rows: usize| Tensor::<1, Int>::arange(0..rows as i64, &device).remainder_scalar(time as i64 % outputs as i64 + 1);
        let head = tensor([width, outputs], 3, 1.0, dtype, &device);
        same("cross-entropy", x, |x| {
            // Each sample has the targets 0 to time - 1, of which the last classes count once more.
            let [samples, time, width] = x.dims();
            let targets = targets(time).repeat_dim(0, samples);
            let loss = LinearCrossEntropy::new().with_reduction(Reduction::None);
            loss.forward(x.reshape([samples * time, width]), head.clone(), None, targets).unwrap().cast(dtype)
        })?;
    }

    #[test]
    fn images_have_the_same_bits_in_any_batch(
        images in 2_usize..6,
        at in 0_usize..5,
        channels in prop::sample::select(vec![2_usize, 4, 16]),
        size in prop::sample::select(vec![4_usize, 9, 28]),
        kernel in prop::sample::select(vec![1_usize, 3]),
        stride in 1_usize..3,
        dtype in prop::sample::select(vec![DType::F32, DType::BF16]),
    ) {
        let (device, cut) = (device(), 1 + at % (images - 1));
        let x = (tensor([images, channels, size, size], 1, 1.0, dtype, &device), cut);
        let conv = |groups: usize| {
            let padding = PaddingConfig2d::Explicit(kernel / 2, kernel / 2, kernel / 2, kernel / 2);
            let config = Conv2dConfig::new([channels, 2 * channels], [kernel; 2]).with_groups(groups);
            config.with_stride([stride; 2]).with_padding(padding).init(&device).map(&mut To(dtype))
        };
        let (dense, grouped) = (conv(1), conv(channels));
        let pool = MaxPool2dConfig::new([2; 2]).with_strides([2; 2]).init();
        same("conv2d", x.clone(), |x| conv2d(&dense, x).unwrap())?;
        same("depthwise conv2d", x.clone(), |x| conv2d(&grouped, x).unwrap())?;
        same("max_pool2d", x.clone(), |x| max_pool2d(&pool, x).unwrap())?;
        let norm = GroupNormConfig::new(2, channels).init(&device);
        same("group_norm", x.clone(), |x| group_norm(&norm, x).unwrap())?;
        if kernel == 3 && stride == 1 {
            same("upsample_conv2d", x, |x| upsample_conv2d(&dense, x, None).unwrap())?;
        }
    }
}

#[test]
fn an_embedding_has_the_same_rows_in_any_batch() {
    let device = device();
    let layer = EmbeddingConfig::new(50, 12).init(&device);
    let ids = Tensor::<1, Int>::arange(0..24, &device).reshape([6, 4]);
    let whole = values(&embedding(&layer, ids.clone()).unwrap());
    for cut in 1..6 {
        let part = |from: usize, to: usize| values(&embedding(&layer, ids.clone().narrow(0, from, to - from)).unwrap());
        assert_eq!([part(0, cut), part(cut, 6)].concat(), whole);
    }
}
