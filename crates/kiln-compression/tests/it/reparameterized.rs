//! Functions that change stored values, and models whose layers do not read the stored values.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Distribution, Tensor};
use kiln_compression::{
    ChannelPruning, Channels, Error, FakeQuantizer, Masks, Nest, Pruning, Quantization, Shapes, mask_channels,
    masks_of, prune, quantize, reshape_like, set_masks, shrink, zero_pruned,
};

use crate::lora::Double;

#[derive(Module, Debug)]
struct Net {
    first: Conv2d,
    norm: BatchNorm,
    second: Conv2d,
}

fn build(device: &Device) -> Net {
    Net {
        first: Conv2dConfig::new([3, 8], [3, 3]).init(device),
        norm: BatchNormConfig::new(8).init(device),
        second: Conv2dConfig::new([8, 5], [3, 3]).init(device),
    }
}

fn forward(net: &Net, x: Tensor<4>) -> Tensor<4> {
    net.second.forward(net.norm.forward(net.first.forward(x)))
}

fn channels() -> Channels {
    Channels::of(build, |net, device| forward(net, Tensor::zeros([1, 3, 9, 9], device))).unwrap()
}

fn image(device: &Device) -> Tensor<4> {
    Tensor::random([2, 3, 9, 9], Distribution::Normal(0.0, 1.0), device)
}

fn is_refused<T>(result: Result<T, Error>, expected: &str) -> bool {
    matches!(result.map(drop), Err(Error::Reparameterized { path }) if path == expected)
}

fn off(a: Tensor<4>, b: Tensor<4>) -> f32 {
    (a - b).abs().max().into_scalar()
}

#[test]
fn channels_are_not_removed_under_codes_or_simulated_codes() {
    let device = Device::flex();
    device.seed(3);
    let (channels, net) = (channels(), build(&device));
    let kept = channels.choose(&net, &ChannelPruning::uniform(0.5)).unwrap();
    let four_bits = FakeQuantizer::of(&net, &Quantization::bits(4)).unwrap();
    let simulated = net.clone().apply_reparameterization(four_bits.clone());
    assert!(is_refused(shrink(simulated, &kept), "first.weight"));
    let nested = net.clone().apply_reparameterization(Nest::new(Masks::of(&net), four_bits.clone()));
    assert!(is_refused(shrink(nested, &kept), "first.weight"));
    let packed = quantize(&net, &Quantization::bits(8)).unwrap().apply_packed(net.clone()).unwrap();
    assert!(is_refused(shrink(packed.clone(), &kept), "first.weight"));
    assert!(is_refused(channels.importance(&packed), "first.weight"));

    // A part that is attached elsewhere only, and one that changes each value by itself, are no obstacle.
    let elsewhere = FakeQuantizer::of(&net, &Quantization::bits(4).skip("first").skip("second"));
    for model in [
        net.clone().apply_reparameterization(Double),
        net.clone().apply_reparameterization(Nest::new(Masks::of_channels(&channels), elsewhere.unwrap())),
    ] {
        let masked = match masks_of(&model).is_empty() {
            true => None,
            false => Some(mask_channels(model.clone(), &kept).unwrap()),
        };
        let small = shrink(masked.clone().unwrap_or(model), &kept).unwrap();
        let x = image(&device);
        let y = forward(&small, x.clone());
        assert_eq!(y.dims(), [2, 5, 5, 5]);
        if let Some(masked) = masked {
            assert!(off(y, forward(&masked, x)) < 1e-5);
        }
    }
}

#[test]
fn shapes_are_not_cut_under_a_reparameterization() {
    let device = Device::flex();
    let (channels, net) = (channels(), build(&device));
    let kept = channels.choose(&net, &ChannelPruning::uniform(0.5)).unwrap();
    let shapes = Shapes::of(&shrink(net.clone(), &kept).unwrap());
    assert!(reshape_like(net.clone(), &shapes).is_ok());
    for model in [
        net.clone().apply_reparameterization(Masks::of(&net)),
        net.clone().apply_reparameterization(FakeQuantizer::of(&net, &Quantization::bits(4)).unwrap()),
    ] {
        assert!(is_refused(reshape_like(model.clone(), &shapes), "first.weight"));
        // Shapes that the model has already.
        assert!(reshape_like(model, &Shapes::of(&net)).is_ok());
    }
}

#[test]
fn codes_are_no_weights_to_choose_by() {
    let device = Device::flex();
    device.seed(3);
    let net = build(&device);
    let packed = quantize(&net, &Quantization::bits(8)).unwrap();
    let masked = net.clone().apply_reparameterization(Nest::new(packed.packing(), Masks::of(&net)));
    assert!(is_refused(prune(masked.clone(), &Pruning::magnitude(0.5)), "first.weight"));
    // Masks that were chosen elsewhere, and a random choice, need no weights.
    let x = image(&device);
    let random = Pruning::Random { sparsity: 0.5, scope: Default::default(), seed: 1 };
    let pruned = prune(masked, &random).unwrap();
    assert!(masks_of(&pruned)["first.weight"].contains(&false));
    let zeroed = zero_pruned(pruned.clone());
    assert_eq!(off(forward(&zeroed, x.clone()), forward(&pruned, x)), 0.0);
}

#[test]
fn a_mask_above_an_adapter_or_a_simulation_keeps_the_values_that_it_lets_through() {
    let device = Device::flex();
    device.seed(3);
    let net = build(&device);
    let four_bits = FakeQuantizer::of(&net, &Quantization::bits(4)).unwrap();
    let model = net.clone().apply_reparameterization(Nest::new(four_bits, Masks::of(&net)));
    // The largest magnitude of each channel, which sets its scale, is pruned.
    let masks = masks_of(&model).into_keys().map(|path| {
        let weight = if path == "first.weight" { net.first.weight.val() } else { net.second.weight.val() };
        let values: Vec<f32> = weight.abs().into_data().iter().collect();
        let length = values.len() / if path == "first.weight" { 8 } else { 5 };
        let largest = |channel: &[f32]| channel.iter().fold(0.0_f32, |largest, value| largest.max(*value));
        let kept = values.chunks(length).flat_map(|c| c.iter().map(move |v| *v < largest(c))).collect::<Vec<_>>();
        (path, kept)
    });
    let pruned = set_masks(model.clone(), masks.collect()).unwrap();
    let x = image(&device);
    let zeroed = zero_pruned(pruned.clone());
    assert_eq!(off(forward(&zeroed, x.clone()), forward(&pruned, x)), 0.0);
}
