//! Convolution compared with burn's own.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::conv2d;
use proptest::prelude::*;

use crate::compare::{config, distance, tensor, tolerance, values};

/// A convolution and the shape of its input.
#[derive(Clone, Debug)]
struct Case {
    images: usize,
    /// Channels of a group, in and out.
    channels: [usize; 2],
    groups: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: PaddingConfig2d,
    bias: bool,
}

impl Case {
    fn new(images: usize, channels: [usize; 2], input: [usize; 2], kernel: [usize; 2]) -> Self {
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        Self { images, channels, groups: 1, input, kernel, stride: [1, 1], dilation: [1, 1], padding, bias: true }
    }

    fn module(&self, dtype: DType, device: &Device) -> Conv2d {
        let [inputs, outputs] = self.channels.map(|channels| channels * self.groups);
        let mut conv = Conv2dConfig::new([inputs, outputs], self.kernel)
            .with_stride(self.stride)
            .with_dilation(self.dilation)
            .with_groups(self.groups)
            .with_padding(self.padding.clone())
            .with_bias(self.bias)
            .init(device);
        let shape = [outputs, self.channels[0], self.kernel[0], self.kernel[1]];
        conv.weight = conv.weight.map(|_| tensor(shape, 2, 0.5, dtype, device).detach().require_grad());
        conv.bias =
            conv.bias.map(|bias| bias.map(|_| tensor([outputs], 3, 0.5, dtype, device).detach().require_grad()));
        conv
    }

    fn x(&self, dtype: DType, device: &Device) -> Tensor<4> {
        let [height, width] = self.input;
        tensor([self.images, self.channels[0] * self.groups, height, width], 1, 1.0, dtype, device)
    }

    fn fits(&self) -> bool {
        let zeros = match self.padding {
            PaddingConfig2d::Explicit(top, left, bottom, right) => [top + bottom, left + right],
            PaddingConfig2d::Valid => [0, 0],
            // burn ignores dilation there.
            PaddingConfig2d::Same => return self.dilation == [1, 1],
        };
        (0..2).all(|side| self.input[side] + zeros[side] > self.dilation[side] * (self.kernel[side] - 1))
    }

    /// Output, and gradients of input, weight and bias.
    fn all(&self, conv: &Conv2d, x: Tensor<4>, forward: impl Fn(&Conv2d, Tensor<4>) -> Tensor<4>) -> Vec<Vec<f64>> {
        let x = x.detach().require_grad();
        let y = forward(conv, x.clone());
        let gradient = tensor(y.dims(), 4, 1.0, DType::F32, &y.device());
        let gradients = (y.clone().cast(DType::F32) * gradient).sum().backward();
        let weight = conv.weight.val().grad(&gradients).unwrap();
        let bias = conv.bias.as_ref().map(|bias| values(&bias.val().grad(&gradients).unwrap()));
        [vec![values(&y), values(&x.grad(&gradients).unwrap()), values(&weight)], Vec::from_iter(bias)].concat()
    }

    fn check(&self, dtype: DType) {
        let device = Device::flex().autodiff();
        let (conv, x) = (self.module(dtype, &device), self.x(dtype, &device));
        let wide = Conv2d {
            weight: conv.weight.clone().map(|weight| weight.detach().cast(DType::F32).detach().require_grad()),
            bias: conv.bias.clone().map(|bias| bias.map(|bias| bias.detach().cast(DType::F32).detach().require_grad())),
            ..conv.clone()
        };
        let expected = self.all(&wide, x.clone().cast(DType::F32), |conv, x| conv.forward(x));
        let got = self.all(&conv, x, |conv, x| conv2d(conv, x).unwrap());
        assert_eq!(got.len(), expected.len());
        for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let far = distance(got, expected);
            assert!(far < tolerance(dtype), "{dtype:?} {self:?} part {part}: {far}");
        }
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let pair = |range: std::ops::RangeInclusive<usize>| [range.clone(), range];
    let padding = prop_oneof![
        Just(PaddingConfig2d::Valid),
        Just(PaddingConfig2d::Same),
        [0usize..=3, 0..=3, 0..=3, 0..=3].prop_map(|[a, b, c, d]| PaddingConfig2d::Explicit(a, b, c, d)),
    ];
    let sizes = (1usize..=3, pair(1..=6), 1usize..=3, pair(1..=13), pair(1..=5));
    (sizes, pair(1..=3), pair(1..=3), padding, any::<bool>())
        .prop_map(|((images, channels, groups, input, kernel), stride, dilation, padding, bias)| Case {
            images,
            channels,
            groups,
            input,
            kernel,
            stride,
            dilation,
            padding,
            bias,
        })
        .prop_filter("the kernel is larger than the input", Case::fits)
}

proptest! {
    #![proptest_config(config(200))]
    #[test]
    fn values_and_gradients_are_those_of_burn(case in cases()) {
        case.check(DType::F32);
    }
}

/// Layers of models: bands of rows, several images a task, blocks of channels, strides, depthwise.
#[test]
fn layers_of_models_in_all_dtypes() {
    let plain = Case::new;
    let cases = [
        plain(17, [3, 16], [28, 28], [3, 3]),
        plain(9, [33, 21], [7, 5], [3, 3]),
        plain(1, [40, 70], [31, 29], [3, 3]),
        Case { stride: [2, 2], ..plain(5, [16, 32], [28, 28], [3, 3]) },
        Case { stride: [2, 2], padding: PaddingConfig2d::Valid, bias: false, ..plain(9, [16, 32], [15, 14], [1, 1]) },
        Case { groups: 24, padding: PaddingConfig2d::Same, ..plain(3, [1, 1], [17, 19], [5, 3]) },
        Case { groups: 6, ..plain(10, [1, 3], [9, 8], [3, 3]) },
        Case { groups: 4, stride: [2, 1], ..plain(2, [5, 7], [12, 40], [3, 3]) },
        Case { stride: [4, 4], padding: PaddingConfig2d::Valid, ..plain(2, [3, 20], [32, 32], [4, 4]) },
        Case { dilation: [2, 3], ..plain(2, [18, 4], [20, 20], [3, 3]) },
    ];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for case in &cases {
            case.check(dtype);
        }
    }
}

#[test]
fn swapped_dimensions() {
    let device = Device::flex().autodiff();
    let case = Case::new(3, [4, 6], [5, 9], [3, 2]);
    let mut conv = case.module(DType::F32, &device);
    conv.weight =
        conv.weight.map(|_| tensor([6, 4, 2, 3], 5, 0.5, DType::F32, &device).swap_dims(2, 3).detach().require_grad());
    let x = tensor([3, 4, 9, 5], 6, 1.0, DType::F32, &device).swap_dims(2, 3);
    let expected = case.all(&conv, x.clone(), |conv, x| conv.forward(x));
    let got = case.all(&conv, x, |conv, x| conv2d(conv, x).unwrap());
    for (got, expected) in got.iter().zip(&expected) {
        assert!(distance(got, expected) < tolerance(DType::F32));
    }
}

#[test]
fn no_images_and_nan() {
    let device = Device::flex().autodiff();
    let case = Case::new(0, [3, 5], [8, 8], [3, 3]);
    let got =
        case.all(&case.module(DType::F32, &device), case.x(DType::F32, &device), |conv, x| conv2d(conv, x).unwrap());
    assert!(got[0].is_empty() && got[1].is_empty());
    assert_eq!(got[2..], [vec![0.0; 5 * 3 * 9], vec![0.0; 5]]);

    let case = Case::new(2, [1, 1], [4, 4], [3, 3]);
    let mut numbers = vec![1.0f32; 32];
    numbers[16] = f32::NAN;
    let x = Tensor::<1>::from_floats(numbers.as_slice(), &device).reshape([2, 1, 4, 4]);
    let y = values(&conv2d(&case.module(DType::F32, &device), x).unwrap());
    let nan: Vec<usize> = (0..32).filter(|index| y[*index].is_nan()).collect();
    assert_eq!(nan, [16, 17, 20, 21]);
}

#[test]
fn same_bits_for_one_to_four_threads() {
    let device = Device::flex().autodiff();
    let grouped = Case { groups: 12, ..Case::new(5, [1, 2], [9, 9], [3, 3]) };
    for case in [Case::new(19, [24, 20], [14, 14], [3, 3]), grouped, Case::new(2, [48, 64], [20, 20], [3, 3])] {
        for dtype in [DType::F32, DType::BF16] {
            let (conv, x) = (case.module(dtype, &device), case.x(dtype, &device));
            let run = || case.all(&conv, x.clone(), |conv, x| conv2d(conv, x).unwrap());
            let on = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run);
            let expected = on(1);
            for threads in 2..=4 {
                assert_eq!(on(threads), expected, "{threads} threads");
            }
        }
    }
}

#[test]
fn unwanted_gradients_are_not_computed() {
    let device = Device::flex().autodiff();
    let case = Case::new(2, [3, 4], [6, 6], [3, 3]);
    let conv = case.module(DType::F32, &device);
    let x = case.x(DType::F32, &device);
    let gradients = conv2d(&conv, x.clone()).unwrap().sum().backward();
    assert!(x.grad(&gradients).is_none() && conv.weight.val().grad(&gradients).is_some());
    let y = conv2d(&conv.clone().no_grad(), x.clone().require_grad()).unwrap();
    assert!(distance(&values(&y), &values(&conv.forward(x))) < tolerance(DType::F32));
}

#[test]
fn inputs_that_do_not_fit_are_errors() {
    let device = Device::flex().autodiff();
    let conv = Case::new(1, [3, 4], [6, 6], [3, 5]).module(DType::F32, &device);
    let message = |conv: &Conv2d, shape: [usize; 4], dtype| {
        conv2d(conv, Tensor::<4>::zeros(shape, (&device, dtype))).unwrap_err().to_string()
    };
    assert_eq!(
        message(&conv, [1, 5, 6, 6], DType::F32),
        "the number of channels of the input is 5, and the number of input channels of the weight is 3; expected the same"
    );
    assert_eq!(
        message(&conv, [1, 3, 6, 6], DType::BF16),
        "the input is BF16, and the weight is F32; expected the same"
    );
    assert_eq!(
        message(&conv, [1, 3, 6, 2], DType::F32),
        "the width of the padded input is 4 with a kernel of 5, expected at least the width of the dilated kernel"
    );
    assert_eq!(
        message(&conv, [1, 3, 0, 9], DType::F32),
        "the height of the padded input is 2 with a kernel of 3, expected at least the height of the dilated kernel"
    );
    let conv = Conv2d { stride: [1, 0], ..conv };
    assert_eq!(message(&conv, [1, 3, 6, 6], DType::F32), "the stride is 0, expected at least 1");
    let conv = Conv2d { stride: [1, 1], groups: 3, ..conv };
    assert_eq!(
        message(&conv, [1, 9, 6, 6], DType::F32),
        "the number of groups is 3, expected a divisor of the number of output channels"
    );
}
