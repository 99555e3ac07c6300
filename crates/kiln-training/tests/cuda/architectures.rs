//! Cards from Turing to Blackwell under old and new drivers: kernels compile, NVIDIA's assembler takes them, and their sums are right.

use burn::tensor::Device;

use crate::follow::{assert_follows, perceptron};
use crate::sim::with_cards;

/// Compute capabilities and driver versions.
const CARDS: [&str; 9] = [
    "SM=75 DRIVER=12.0",
    "SM=75 DRIVER=13.3",
    "SM=80 DRIVER=12.0",
    "SM=80 DRIVER=13.3",
    "SM=86 DRIVER=13.0",
    "SM=89 DRIVER=12.8",
    "SM=90 DRIVER=13.0",
    "SM=100 DRIVER=12.8",
    "SM=100 DRIVER=13.3",
];

#[test]
fn of_all_ages() {
    with_cards(&[("PTXAS", "find")], &CARDS, |card, case| {
        let [cuda, flex] = perceptron([Device::cuda(0), Device::flex()]);
        // Tensor cores of sm_75 do not take TF32, so that products are in f32.
        assert_follows(&cuda, &flex, if case.starts_with("SM=75") { 1e-5 } else { 1e-3 });
        assert_eq!(card.count("modules_refused"), 0);
        println!("{case}: {} kernels", card.count("modules"));
    });
}
