//! The convolution of a doubled image joined with another, compared with burn's own operations.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::upsample_conv2d;
use proptest::prelude::*;

use crate::compare::{config, distance, tensor, tolerance, values};

fn module([inputs, outputs]: [usize; 2], dtype: DType, device: &Device) -> Conv2d {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let mut conv = Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(device);
    conv.weight = conv.weight.map(|_| tensor([outputs, inputs, 3, 3], 2, 0.5, dtype, device).detach().require_grad());
    conv.bias = conv.bias.map(|bias| bias.map(|_| tensor([outputs], 3, 0.5, dtype, device).detach().require_grad()));
    conv
}

/// The convolution step by step.
fn plain(conv: &Conv2d, x: Tensor<4>, skip: Option<Tensor<4>>) -> Tensor<4> {
    let [b, c, h, w] = x.dims();
    let x = x.reshape([b, c, h, 1, w, 1]).expand([b, c, h, 2, w, 2]).reshape([b, c, 2 * h, 2 * w]);
    conv.forward(skip.map_or(x.clone(), |skip| Tensor::cat(vec![x, skip], 1)))
}

type Forward = fn(&Conv2d, Tensor<4>, Option<Tensor<4>>) -> Tensor<4>;

/// The output, and all gradients that exist.
fn all(conv: &Conv2d, x: &Tensor<4>, skip: Option<&Tensor<4>>, forward: Forward) -> Vec<Vec<f64>> {
    let x = x.clone().detach().require_grad();
    let skip = skip.map(|skip| skip.clone().detach().require_grad());
    let y = forward(conv, x.clone(), skip.clone());
    let gradient = tensor(y.dims(), 4, 1.0, DType::F32, &y.device());
    let gradients = (y.clone().cast(DType::F32) * gradient).sum().backward();
    let mut parts = vec![values(&y), values(&x.grad(&gradients).unwrap())];
    parts.extend(skip.map(|skip| values(&skip.grad(&gradients).unwrap())));
    parts.push(values(&conv.weight.val().grad(&gradients).unwrap()));
    parts.push(values(&conv.bias.as_ref().unwrap().val().grad(&gradients).unwrap()));
    parts
}

fn check([images, channels, others, outputs]: [usize; 4], [height, width]: [usize; 2], dtype: DType) {
    let device = Device::flex().autodiff();
    let x = tensor([images, channels, height, width], 1, 1.0, dtype, &device);
    let skip = (others > 0).then(|| tensor([images, others, 2 * height, 2 * width], 5, 1.0, dtype, &device));
    let conv = module([channels + others, outputs], dtype, &device);
    let wide = conv.clone().map(&mut Widen);
    let cast = |x: &Tensor<4>| x.clone().cast(DType::F32);
    let expected = all(&wide, &cast(&x), skip.as_ref().map(cast).as_ref(), plain);
    let got = all(&conv, &x, skip.as_ref(), |conv, x, skip| upsample_conv2d(conv, x, skip).unwrap());
    assert_eq!(got.len(), expected.len());
    for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let far = distance(got, expected);
        // In 16 bits the sums of weights are rounded, and so is the sum of both convolutions.
        assert!(far < 2.0 * tolerance(dtype), "{dtype:?} part {part} of {images} {channels} {others} {outputs}: {far}");
    }
}

struct Widen;

impl burn::module::ModuleMapper for Widen {
    fn map_float<const D: usize>(&mut self, param: burn::module::Param<Tensor<D>>) -> burn::module::Param<Tensor<D>> {
        param.map(|tensor| tensor.detach().cast(DType::F32).detach().require_grad())
    }
}

proptest! {
    #![proptest_config(config(60))]
    #[test]
    fn values_and_gradients_are_those_of_the_steps(
        sizes in [1usize..=3, 1..=5, 0..=4, 1..=4],
        image in prop_oneof![[1usize..=4, 1..=4], [6usize..=9, 6..=9]],
    ) {
        // Both ways of computing: images below and above 9 pixels for each output.
        check(sizes, image, DType::F32);
    }
}

#[test]
fn in_16_bits() {
    for dtype in [DType::F16, DType::BF16] {
        for (sizes, image) in [([2, 3, 2, 2], [6, 7]), ([2, 5, 0, 3], [8, 6]), ([1, 4, 3, 4], [2, 3])] {
            check(sizes, image, dtype);
        }
    }
}

#[test]
fn other_convolutions_and_sizes_are_refused() {
    let device = Device::flex().autodiff();
    let x = tensor([1, 2, 4, 4], 1, 1.0, DType::F32, &device);
    let skip = |size: [usize; 4]| Some(tensor(size, 2, 1.0, DType::F32, &device));
    let conv = module([5, 2], DType::F32, &device);
    let refused = |conv: &Conv2d, skip| upsample_conv2d(conv, x.clone(), skip).unwrap_err().to_string();
    assert!(upsample_conv2d(&conv, x.clone(), skip([1, 3, 8, 8])).is_ok());
    let text = refused(&conv, None);
    assert!(text.contains("channels of both inputs is 2") && text.contains("is 5"), "{text}");
    assert!(refused(&conv, skip([1, 3, 8, 7])).contains("the doubled input is 8"));
    for other in [Conv2dConfig::new([5, 2], [3, 3]), Conv2dConfig::new([5, 2], [1, 1])] {
        let text = refused(&other.init(&device), skip([1, 3, 8, 8]));
        assert!(text.contains("expected a 3x3 kernel"), "{text}");
    }
}
