//! The number of times that a step waits for the GPU, and of its operations.

use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_training::OptimizerConfig;

use crate::run::device;
use crate::sim::{Card, with_card};
use crate::support::{Watched, planned, settings};
use crate::tasks::{Case, Residual, Text};

/// Counts of the third step: waits, copies to the host, and launches.
fn step<C: Case>(card: &Card, case: &C) -> [u64; 3] {
    let settings = settings(OptimizerConfig::adamw());
    let builder = planned(case.clone(), |device| case.model(device), &settings);
    let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
    let read = || {
        let waits = card.count("synchronisations") + card.count("event_synchronisations");
        [waits, card.count("device_to_host"), card.count("launches")]
    };
    let mut before = read();
    for number in 0..3 {
        let batch = case.batch(number);
        before = read();
        let _ = trainer.step(&batch).unwrap();
    }
    let after = read();
    println!("waits, copies to the host, launches: {before:?} {after:?}");
    std::array::from_fn(|index| after[index] - before[index])
}

/// A step reads norm and loss. Nothing else in it waits, whatever the number of parameters.
#[test]
fn a_step_waits_for_norm_and_loss() {
    with_card(&[], |card| {
        let config = ResNetConfig::resnet18(4).with_stem(Stem::Cifar).with_width(4);
        let [waits, copies, _] = step(card, &Residual { samples: 4, side: 8, config });
        assert!(waits <= 3 && copies == 2, "{waits} waits, {copies} copies");
        let config = GptConfig { vocab: 16, context: 8, layers: 1, heads: 2, width: 16, dropout: 0.0, lean: true };
        let [waits, copies, _] = step(card, &Text { samples: 4, config });
        assert!(waits <= 3 && copies == 2, "{waits} waits, {copies} copies");
    });
}
