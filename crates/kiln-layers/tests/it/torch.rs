//! Outputs and gradients of single layers compared with those that torch computed in f64 (`fixtures/layers/record.py`).

use std::path::PathBuf;

use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig, LayerNormConfig,
    PaddingConfig2d, RmsNorm, RmsNormConfig,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_layers::{
    AttentionOptions, LinearCrossEntropy, Mask, NormActivation, Reduction, attention, batch_norm, batch_norm_activated,
    batch_norm_add_relu, batch_norm_leaky_relu, batch_norm_relu, conv2d, gelu, gelu_tanh, group_norm, instance_norm,
    layer_norm, max_pool2d, rms_norm, silu, softmax, swiglu,
};
use safetensors::SafeTensors;

use crate::compare::{distance, tolerance, values};

/// The values that torch recorded of one layer, and the tolerance.
struct Case<'a> {
    name: &'static str,
    recorded: &'a SafeTensors<'a>,
    device: Device,
    dtype: DType,
}

impl Case<'_> {
    fn read<const D: usize>(&self, key: &str) -> Tensor<D> {
        let view = self.recorded.tensor(&format!("{}.{key}", self.name)).unwrap();
        let numbers = view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        let data = TensorData::new(numbers.collect::<Vec<_>>(), view.shape());
        Tensor::from_data(data, (&self.device, DType::F32))
    }

    /// An input, which takes part in the graph.
    fn input<const D: usize>(&self, key: &str) -> Tensor<D> {
        self.read(key).cast(self.dtype).require_grad()
    }

    /// Compares an output.
    fn output<const D: usize>(&self, y: &Tensor<D>) {
        self.near("output", &values(y), &values(&self.read::<D>("output")));
    }

    fn gradient<const D: usize>(&self, key: &str, gradient: &Tensor<D>) {
        self.near(key, &values(gradient), &values(&self.read::<D>(&format!("grad.{key}"))));
    }

    fn near(&self, what: &str, got: &[f64], expected: &[f64]) {
        let far = distance(got, expected);
        // Inputs are rounded to 16 bits as well.
        let limit = if self.dtype == DType::F32 { 1e-5 } else { 4.0 * tolerance(self.dtype) };
        assert!(far < limit, "{} {:?}, {what}: {far}", self.name, self.dtype);
    }
}

/// Runs a layer, given by the names of its inputs and their numbers of dimensions, and compares its output and the gradients of all inputs.
macro_rules! check {
    ($case:expr, |$($input:ident: $dims:literal),+| -> $out:literal $body:expr) => {{
        let case = $case;
        $(let $input: Tensor<$dims> = case.input(stringify!($input));)+
        let inputs = ($($input.clone(),)+);
        let y: Tensor<$out> = $body;
        case.output(&y);
        let gradients = (y.cast(DType::F32) * case.read::<$out>("upstream")).sum().backward();
        let ($($input,)+) = inputs;
        $(case.gradient(stringify!($input), &$input.grad(&gradients).unwrap());)+
    }};
}

fn parameter<const D: usize>(value: Tensor<D>) -> Param<Tensor<D>> {
    Param::from_tensor(value)
}

fn norm_2d(weight: Tensor<1>, bias: Tensor<1>) -> BatchNorm {
    let norm = BatchNormConfig::new(6).init(&weight.device());
    BatchNorm { gamma: parameter(weight), beta: parameter(bias), ..norm }
}

fn layers(dtype: DType) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/layers/layers.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let recorded = &SafeTensors::deserialize(&bytes).unwrap();
    let device = &Device::flex().autodiff();
    let case = |name| Case { name, recorded, device: device.clone(), dtype };

    check!(case("gelu"), |x: 3| -> 3 gelu(x).unwrap());
    check!(case("gelu_tanh"), |x: 3| -> 3 gelu_tanh(x).unwrap());
    check!(case("silu"), |x: 3| -> 3 silu(x).unwrap());
    check!(case("softmax"), |x: 3| -> 3 softmax(x).unwrap());
    check!(case("swiglu"), |gate: 2, up: 2| -> 2 swiglu(gate, up).unwrap());

    check!(case("layer_norm"), |x: 3, weight: 1, bias: 1| -> 3 {
        let mut norm = LayerNormConfig::new(7).init(device);
        (norm.gamma, norm.beta) = (parameter(weight), Some(parameter(bias)));
        layer_norm(&norm, x).unwrap()
    });
    check!(case("rms_norm"), |x: 3, weight: 1| -> 3 {
        let norm = RmsNormConfig::new(7).init(device);
        rms_norm(&RmsNorm { gamma: parameter(weight), ..norm }, x).unwrap()
    });
    check!(case("group_norm"), |x: 4, weight: 1, bias: 1| -> 4 {
        let norm = GroupNormConfig::new(3, 6).init(device);
        group_norm(&GroupNorm { gamma: Some(parameter(weight)), beta: Some(parameter(bias)), ..norm }, x).unwrap()
    });
    check!(case("instance_norm"), |x: 4, weight: 1, bias: 1| -> 4 {
        let norm = InstanceNormConfig::new(6).init(device);
        instance_norm(&InstanceNorm { gamma: Some(parameter(weight)), beta: Some(parameter(bias)), ..norm }, x).unwrap()
    });
    check!(case("batch_norm"), |x: 4, weight: 1, bias: 1| -> 4 batch_norm(&norm_2d(weight, bias), x).unwrap());
    check!(case("batch_norm_relu"), |x: 4, weight: 1, bias: 1| -> 4 {
        batch_norm_relu(&norm_2d(weight, bias), x).unwrap()
    });
    check!(case("batch_norm_relu6"), |x: 4, weight: 1, bias: 1| -> 4 {
        batch_norm_activated(&norm_2d(weight, bias), NormActivation::Relu6, x).unwrap()
    });
    check!(case("batch_norm_hard_swish"), |x: 4, weight: 1, bias: 1| -> 4 {
        batch_norm_activated(&norm_2d(weight, bias), NormActivation::HardSwish, x).unwrap()
    });
    check!(case("batch_norm_leaky_relu"), |x: 4, weight: 1, bias: 1| -> 4 {
        batch_norm_leaky_relu(&norm_2d(weight, bias), x, 0.1).unwrap()
    });
    check!(case("batch_norm_add_relu"), |x: 4, weight: 1, bias: 1, residual: 4| -> 4 {
        batch_norm_add_relu(&norm_2d(weight, bias), x, residual).unwrap()
    });

    check!(case("conv2d"), |x: 4, weight: 4, bias: 1| -> 4 {
        let config = Conv2dConfig::new([6, 4], [3, 3]).with_stride([2, 1]);
        let conv = config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device);
        conv2d(&Conv2d { weight: parameter(weight), bias: Some(parameter(bias)), ..conv }, x).unwrap()
    });
    check!(case("conv2d_dilated"), |x: 4, weight: 4| -> 4 {
        let config = Conv2dConfig::new([6, 4], [2, 3]).with_dilation([3, 2]).with_groups(2).with_bias(false);
        let conv = config.with_padding(PaddingConfig2d::Explicit(0, 2, 0, 2)).init(device);
        conv2d(&Conv2d { weight: parameter(weight), ..conv }, x).unwrap()
    });
    check!(case("conv2d_depthwise"), |x: 4, weight: 4| -> 4 {
        let config = Conv2dConfig::new([6, 12], [3, 3]).with_stride([2, 2]).with_groups(6).with_bias(false);
        let conv = config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device);
        conv2d(&Conv2d { weight: parameter(weight), ..conv }, x).unwrap()
    });
    check!(case("max_pool"), |x: 4| -> 4 {
        let config = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]);
        max_pool2d(&config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(), x).unwrap()
    });

    check!(case("attention"), |q: 4, k: 4, v: 4| -> 4 attention(q, k, v, Mask::None).unwrap());
    check!(case("attention_causal"), |q: 4, k: 4, v: 4| -> 4 {
        attention(q, k, v, AttentionOptions::from(Mask::Causal).with_scale(0.3)).unwrap()
    });
    check!(case("attention_grouped"), |q: 4, k: 4, v: 4| -> 4 attention(q, k, v, Mask::None).unwrap());

    let targets = || Tensor::<1, Int>::from_ints([3, 0, -100, 7, 10, 3], device);
    let plain = LinearCrossEntropy::new().with_ignore_index(-100);
    let class_weights: Vec<f32> = (0..11).map(|class| 0.5 + (class % 4) as f32 / 2.0).collect();
    let class_weights = Tensor::<1>::from_floats(class_weights.as_slice(), device);
    let smoothed = plain.clone().with_label_smoothing(0.1).with_class_weights(class_weights);
    for (name, loss) in [
        ("loss", plain),
        ("loss_smoothed", smoothed.clone()),
        ("loss_of_rows", smoothed.with_reduction(Reduction::None)),
    ] {
        check!(case(name), |hidden: 2, weight: 2, bias: 1| -> 1 {
            loss.forward(hidden, weight, Some(bias), targets()).unwrap()
        });
    }
}

#[test]
fn outputs_and_gradients_are_those_of_torch() {
    [DType::F32, DType::F16, DType::BF16].into_iter().for_each(layers);
}
