//! Steps whose optimizer keeps its state on the host.

use burn::optim::Optimizer;
use kiln_memory::{BackendProfile, StepOptions};
use kiln_optimizers::{FusedAdamW, Offloaded};
use kiln_precision::Precision;

use crate::steps::{adamw, flex, mlp};

/// The predicted peak of a step on a device with memory of its own, without the fixed part, and on the CPU device.
fn peaks(batch: usize, options: StepOptions, optimizer: &impl Optimizer) -> [f64; 2] {
    let trace = mlp((512, 6), Precision::F32, optimizer, options);
    let cuda = BackendProfile { fixed_bytes: 0, ..BackendProfile::cuda() };
    [cuda, flex()].map(|profile| trace.predict(batch, &profile).unwrap().peak_bytes as f64)
}

fn options() -> [StepOptions; 2] {
    [false, true].map(|keep_parameters| StepOptions { keep_parameters, ..StepOptions::default() })
}

/// Bytes of AdamW's two moments.
fn state() -> f64 {
    let parameters = 6 * (512 * 512 + 512 + 2 * 512) + 512 * 10 + 10;
    8.0 * f64::from(parameters)
}

#[test]
fn state_takes_no_memory_where_the_forward_pass_has_its_peak() {
    for options in options() {
        let plain = peaks(20_000, options, &adamw());
        for optimizer in [Offloaded::new(adamw()), Offloaded::by_chunks(adamw(), 1 << 14).unwrap()] {
            let offloaded = peaks(20_000, options, &optimizer);
            let less = (plain[0] - offloaded[0]) / state();
            assert!((0.99..1.02).contains(&less), "{less} of the state");
            assert!(offloaded[1] > 0.999 * plain[1], "the CPU device keeps state in the same memory");
        }
    }
}

#[test]
fn an_update_has_the_state_of_a_chunk() {
    for options in options() {
        let plain = peaks(1, options, &adamw())[0];
        let whole = peaks(1, options, &Offloaded::new(adamw()))[0];
        let chunked = peaks(1, options, &Offloaded::by_chunks(adamw(), 1 << 14).unwrap())[0];
        // Two states of the largest parameter, an old one and a new one.
        assert!(plain - whole > state() - 2.0 * 8.0 * 512.0 * 512.0, "{plain}, {whole}");
        assert!(whole > chunked, "{whole}, {chunked}");
    }
}

#[test]
fn fused_updates_are_known_too() {
    let fused = || FusedAdamW::from(burn::optim::AdamWConfig::new());
    let [plain, offloaded] = [
        peaks(20_000, StepOptions::default(), &fused()),
        peaks(20_000, StepOptions::default(), &Offloaded::by_chunks(fused(), 1 << 14).unwrap()),
    ];
    let less = (plain[0] - offloaded[0]) / state();
    assert!((0.99..1.02).contains(&less), "{less} of the state");
}
