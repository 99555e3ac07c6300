//! Results have the same bits whatever the number of threads.

use burn::module::Param;
use burn::nn::LayerNormConfig;
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_layers::{LinearCrossEntropy, Mask, SegmentationLoss, dropout, gelu, layer_norm, self_attention};

use crate::compare::{tensor, values};

/// The loss and the gradients of a small decoder's layers.
fn run(dtype: DType) -> Vec<Vec<f64>> {
    let device = Device::flex().autodiff();
    let qkv = tensor([3, 200, 3 * 48], 1, 1.0, dtype, &device).require_grad();
    let mut norm = LayerNormConfig::new(48).init(&device);
    norm.gamma = Param::from_tensor(tensor([48], 2, 1.0, DType::F32, &device));
    let output = tensor([48, 500], 3, 1.0, dtype, &device).require_grad();
    let x = self_attention(qkv.clone(), 4, Mask::Causal).unwrap();
    let x = dropout(gelu(layer_norm(&norm, x).unwrap()).unwrap(), 0.1, 5).unwrap();
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

#[test]
fn same_bits_for_one_to_four_threads() {
    for dtype in [DType::F32, DType::BF16] {
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let on = |threads| pool(threads).install(|| run(dtype));
        let expected = on(1);
        for threads in 2..=4 {
            assert_eq!(on(threads), expected, "{threads} threads");
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
