//! Layers on inputs of any shape and layout, compared with burn's own operations in f32: `PROPTEST_CASES=20000` runs this for minutes.

use burn::module::Param;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNormConfig, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d, RmsNorm,
    RmsNormConfig,
};
use burn::tensor::{DType, Device, Tensor, activation};
use kiln_layers::{
    Activation, activation_linear, add_relu, batch_norm, gelu, gelu_tanh, group_norm, layer_norm, linear, max_pool2d,
    norm_linear, rms_norm, silu, softmax, swiglu,
};
use proptest::prelude::*;

use crate::compare::{config, distance, tensor, tolerance, values};

/// A tensor, which may be a view: with its last dimensions swapped, or every other value of its last dimension.
fn input<const D: usize>(shape: [usize; D], seed: u64, dtype: DType, layout: u8, device: &Device) -> Tensor<D> {
    let (mut swapped, mut long) = (shape, shape);
    swapped.swap(D - 1, D - 2);
    long[D - 1] *= 2;
    match layout {
        0 => tensor(shape, seed, 2.0, dtype, device),
        1 => tensor(swapped, seed, 2.0, dtype, device).swap_dims(D - 1, D - 2),
        _ => tensor(long, seed, 2.0, dtype, device).slice_dim(D - 1, burn::tensor::s![..;2]),
    }
}

/// Output and gradients of all inputs.
fn run<const D: usize>(
    inputs: &[Tensor<D>],
    dtype: DType,
    layer: impl Fn(&[Tensor<D>]) -> Tensor<D>,
) -> Vec<(Vec<f64>, [usize; D])> {
    let inputs: Vec<_> = inputs.iter().map(|input| input.clone().cast(dtype).detach().require_grad()).collect();
    let y = layer(&inputs);
    let upstream = tensor(y.dims(), 99, 1.0, DType::F32, &y.device());
    let gradients = (y.clone().cast(DType::F32) * upstream).sum().backward();
    let gradients = inputs.iter().map(|input| input.grad(&gradients).unwrap());
    std::iter::once(y).chain(gradients).map(|part| (values(&part), part.dims())).collect()
}

/// Compares a layer in the dtype of its inputs with burn's own operations on the same numbers in f32.
fn check<const D: usize>(
    what: &str,
    inputs: &[Tensor<D>],
    ours: impl Fn(&[Tensor<D>]) -> Tensor<D>,
    stock: impl Fn(&[Tensor<D>]) -> Tensor<D>,
) {
    let dtype = inputs[0].dtype();
    let (got, expected) = (run(inputs, dtype, ours), run(inputs, DType::F32, stock));
    for (part, ((got, shape), (expected, expected_shape))) in got.iter().zip(&expected).enumerate() {
        assert_eq!(shape, expected_shape, "{what}, part {part}");
        let far = distance(got, expected);
        assert!(far < 4.0 * tolerance(dtype), "{what} {dtype:?}, part {part}: {far}");
    }
}

fn parameter(length: usize, seed: u64, device: &Device) -> Param<Tensor<1>> {
    Param::from_tensor(tensor([length], seed, 0.5, DType::F32, device) + 1.0)
}

fn projection([inputs, outputs]: [usize; 2], bias: bool, device: &Device) -> Linear {
    let layer = LinearConfig::new(inputs, outputs).with_bias(bias).init(device);
    Linear { weight: Param::from_tensor(tensor([inputs, outputs], 5, 0.5, DType::F32, device)), ..layer }
}

fn rows([height, width, outputs]: [usize; 3], dtype: DType, [first, second]: [u8; 2]) {
    let device = Device::flex().autodiff();
    let one = [input([height, width], 1, dtype, first, &device)];
    let two = [one[0].clone(), input([height, width], 2, dtype, second, &device)];
    check("gelu", &one, |x| gelu(x[0].clone()).unwrap(), |x| activation::gelu(x[0].clone()));
    check("gelu_tanh", &one, |x| gelu_tanh(x[0].clone()).unwrap(), |x| activation::gelu_approximate(x[0].clone()));
    check("silu", &one, |x| silu(x[0].clone()).unwrap(), |x| activation::silu(x[0].clone()));
    let gated = |x: &[Tensor<2>]| activation::silu(x[0].clone()) * x[1].clone();
    check("swiglu", &two, |x| swiglu(x[0].clone(), x[1].clone()).unwrap(), gated);
    check("softmax", &one, |x| softmax(x[0].clone()).unwrap(), |x| activation::softmax(x[0].clone(), 1));
    for bias in [true, false] {
        let layer = projection([width, outputs], bias, &device);
        check("linear", &one, |x| linear(&layer, x[0].clone()).unwrap(), |x| layer.forward(x[0].clone()));
        let stock = |x: &[Tensor<2>]| layer.forward(activation::silu(x[0].clone()));
        let ours = |x: &[Tensor<2>]| activation_linear(Activation::Silu, &layer, x[0].clone()).unwrap();
        check("activation_linear", &one, ours, stock);
    }
    // In a norm of few values, the gradient is only the rounding of sums that cancel.
    if width > 4 {
        norms(&one, outputs, &device);
    }
}

fn norms(one: &[Tensor<2>], outputs: usize, device: &Device) {
    let width = one[0].dims()[1];
    let mut norm = LayerNormConfig::new(width).init(device);
    (norm.gamma, norm.beta) = (parameter(width, 3, device), Some(parameter(width, 4, device)));
    check("layer_norm", one, |x| layer_norm(&norm, x[0].clone()).unwrap(), |x| norm.forward(x[0].clone()));
    let root = RmsNorm { gamma: parameter(width, 3, device), ..RmsNormConfig::new(width).init(device) };
    check("rms_norm", one, |x| rms_norm(&root, x[0].clone()).unwrap(), |x| root.forward(x[0].clone()));
    let layer = projection([width, outputs], true, device);
    let stock = |x: &[Tensor<2>]| layer.forward(norm.forward(x[0].clone()));
    check("norm_linear", one, |x| norm_linear(&norm, &layer, x[0].clone()).unwrap(), stock);
}

fn images([samples, groups, height, width]: [usize; 4], dtype: DType, [first, second]: [u8; 2]) {
    let device = Device::flex().autodiff();
    let channels = 2 * groups;
    let shape = [samples, channels, height, width];
    let one = [input(shape, 1, dtype, first, &device)];
    let two = [one[0].clone(), input(shape, 2, dtype, second, &device)];
    let stock = |x: &[Tensor<4>]| activation::relu(x[0].clone() + x[1].clone());
    if dtype == DType::F32 {
        // Sums that 16 bits round to zero have another gradient in f32. Maxima that are equal in 16 bits may differ in f32.
        check("add_relu", &two, |x| add_relu(x[0].clone(), x[1].clone()).unwrap(), stock);
        let config = MaxPool2dConfig::new([2, 3]).with_strides([2, 1]);
        let pool = config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init();
        check("max_pool2d", &one, |x| max_pool2d(&pool, x[0].clone()).unwrap(), |x| pool.forward(x[0].clone()));
    }
    let norm = GroupNormConfig::new(groups, channels).with_epsilon(1e-2).init(&device);
    check("group_norm", &one, |x| group_norm(&norm, x[0].clone()).unwrap(), |x| norm.forward(x[0].clone()));
    let norm = || {
        let norm = BatchNormConfig::new(channels).with_epsilon(1e-2).init(&device);
        BatchNorm { gamma: parameter(channels, 3, &device), beta: parameter(channels, 4, &device), ..norm }
    };
    check("batch_norm", &one, |x| batch_norm(&norm(), x[0].clone()).unwrap(), |x| norm().forward(x[0].clone()));
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F32, DType::F16, DType::BF16])
}

fn layouts() -> impl Strategy<Value = [u8; 2]> {
    [0u8..3, 0u8..3]
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn layers_of_rows(sizes in [1usize..70, 1usize..70, 1usize..70], dtype in dtypes(), layouts in layouts()) {
        rows(sizes, dtype, layouts);
    }

    #[test]
    fn layers_of_images(sizes in [1usize..6, 1usize..9, 2usize..24, 2usize..24], dtype in dtypes(), layouts in layouts()) {
        images(sizes, dtype, layouts);
    }
}
