//! Offloaded inputs: their memory on the card is free until the backward pass, and their values are those of the forward pass.

use burn::nn::LinearConfig;
use burn::tensor::{Device, Distribution, Tensor};
use kiln_checkpointing::Checkpoint;

use crate::run::in_use;
use crate::sim::with_card;

const SIDE: usize = 512;

/// The gradients of x, and the bytes that are live between the passes. `uses_again`: whether the input is used after the segment, in place
/// where nobody else holds it.
fn pass(device: &Device, offload: bool, uses_again: bool) -> (Vec<f32>, u64) {
    device.seed(5);
    let layer = LinearConfig::new(SIDE, SIDE).init(device);
    let x = Tensor::<2>::random([SIDE, SIDE], Distribution::Default, device).require_grad();
    let y = x.clone() * 2.0;
    let checkpoint = Checkpoint::new().deterministic();
    let checkpoint = if offload { checkpoint.offload() } else { checkpoint };
    let z = checkpoint.run(&layer, y.clone(), |layer, y| layer.forward(y)).unwrap().sum();
    let loss = match uses_again {
        true => (y + 1.0).square().sum() + z,
        false => {
            drop(y);
            z
        }
    };
    let live = in_use();
    let gradients = x.grad(&loss.backward()).unwrap().into_data().iter::<f32>().collect();
    (gradients, live)
}

#[test]
fn an_offloaded_input_is_not_on_the_card_and_keeps_its_values() {
    with_card(&[], |_| {
        let device = Device::cuda(0).autodiff();
        for uses_again in [false, true] {
            let [(kept, live), (offloaded, rest)] = [false, true].map(|offload| pass(&device, offload, uses_again));
            println!("{live} bytes live, {rest} offloaded");
            assert_eq!(kept, offloaded);
            assert!(uses_again || rest + 4 * (SIDE * SIDE) as u64 <= live, "{rest} of {live}");
        }
    });
}
