//! Results have the same bits whatever the number of threads.

use burn::module::Param;
use burn::nn::{GroupNormConfig, LayerNormConfig, LinearConfig, RmsNormConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_layers::{
    Activation, LinearCrossEntropy, Mask, SegmentationLoss, activation_linear, dropout, gelu, group_norm,
};
use kiln_layers::{layer_norm, linear, norm_linear, self_attention, softmax, swiglu};

use crate::compare::{tensor, values};

/// The loss and the gradients of a small decoder's layers.
fn run(dtype: DType) -> Vec<Vec<f64>> {
    let device = Device::flex().autodiff();
    let qkv = tensor([3, 200, 3 * 48], 1, 1.0, dtype, &device).require_grad();
    let mut norm = LayerNormConfig::new(48).init(&device);
    norm.gamma = Param::from_tensor(tensor([48], 2, 1.0, DType::F32, &device));
    let output = tensor([48, 500], 3, 1.0, dtype, &device).require_grad();
    let x = self_attention(qkv.clone(), 4, Mask::Causal).unwrap();
    let x = gelu(layer_norm(&norm, x).unwrap()).unwrap();
    let targets = Tensor::<1, Int>::arange(0..600, &device).remainder_scalar(500);
    let loss = LinearCrossEntropy::new().forward(x.reshape([600, 48]), output.clone(), None, targets).unwrap();
    let gradients = loss.backward();
    let gradients = [
        values(&qkv.grad(&gradients).unwrap()),
        values(&norm.gamma.val().grad(&gradients).unwrap()),
        values(&output.grad(&gradients).unwrap()),
    ];
    [vec![values(&loss)], gradients.to_vec()].concat()
}

/// The output and the gradients of a gated and a plain feed-forward layer and a group norm.
fn run_rows(dtype: DType) -> Vec<Vec<f64>> {
    let device = Device::flex().autodiff();
    let module = |inputs, outputs, seed| {
        let mut layer = LinearConfig::new(inputs, outputs).init(&device);
        layer.weight = Param::from_tensor(tensor([inputs, outputs], seed, 0.2, dtype, &device));
        layer.bias = Some(Param::from_tensor(tensor([outputs], seed, 0.2, dtype, &device)));
        layer
    };
    let (up, down) = (module(70, 210, 2), module(210, 70, 3));
    let rms = RmsNormConfig::new(70).init(&device);
    let group = GroupNormConfig::new(2, 4).init(&device);
    let x = tensor([150, 4, 70], 1, 1.0, dtype, &device).require_grad();
    let hidden = norm_linear(&rms, &up, x.clone()).unwrap();
    let y = activation_linear(Activation::GeluTanh, &down, hidden.clone()).unwrap();
    let gated = linear(&down, dropout(swiglu(hidden.clone(), hidden).unwrap(), 0.1, 5).unwrap()).unwrap();
    let y = softmax(group_norm(&group, y + gated).unwrap()).unwrap();
    let gradients = (y.clone() * x.clone().detach()).sum().backward();
    let mut all = vec![values(&y), values(&x.grad(&gradients).unwrap())];
    all.extend([&up, &down].map(|layer| values(&layer.weight.val().grad(&gradients).unwrap())));
    let parameters = [&rms.gamma, up.bias.as_ref().unwrap(), group.gamma.as_ref().unwrap()];
    all.extend(parameters.map(|parameter| values(&parameter.val().grad(&gradients).unwrap())));
    all
}

#[test]
fn same_bits_for_one_to_four_threads() {
    for dtype in [DType::F32, DType::BF16] {
        for run in [run, run_rows] {
            let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let on = |threads| pool(threads).install(|| run(dtype));
            let expected = on(1);
            for threads in 2..=4 {
                assert_eq!(on(threads), expected, "{threads} threads");
            }
        }
    }
}

/// burn's CPU device adds the partial sums of 4 Mi elements and more in the order in which threads finish them.
#[test]
fn the_loss_of_large_images_has_the_same_bits() {
    let device = Device::flex();
    let logits = tensor([1, 5, 1000, 1000], 1, 30.0, DType::F32, &device);
    let classes = Tensor::<1, Int>::arange(0..1_000_000, &device).remainder_scalar(5).reshape([1, 1000, 1000]);
    let weights = Tensor::<3>::ones([1, 1000, 1000], &device);
    let run = || values(&SegmentationLoss::new().forward(logits.clone(), classes.clone(), weights.clone()).unwrap());
    let expected = run();
    for threads in 1..=4 {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert_eq!(pool.install(run), expected, "{threads} threads");
    }
}
