//! Steps whose optimizer keeps its state in 8 or 4 bits.

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, Optimizer, SgdConfig};
use kiln_memory::{BackendProfile, StepOptions};
use kiln_optimizers::{AdamW4bit, AdamW8bit, FusedAdamW, FusedSgd, Sgd8bit};
use kiln_precision::Precision;

use crate::steps::{flex, mlp};

/// The predicted peak of a step whose batch is so large that the peak is in the backward pass, where the state is not changed.
fn peak(optimizer: &impl Optimizer) -> f64 {
    let trace = mlp((512, 6), Precision::F32, optimizer, StepOptions::default());
    trace.predict(20_000, &flex()).unwrap().peak_bytes as f64
}

#[test]
fn state_of_codes_takes_a_byte_or_half_a_byte_for_each_moment() {
    // Parameters with at least 4,096 elements. The others have the same moments in all optimizers.
    let large = 6.0 * 512.0 * 512.0 + 512.0 * 10.0;
    let config = AdamWConfig::new();
    let full = peak(&FusedAdamW::from(config.clone()));
    let saved = |got: f64| (full - got) / large;
    let eight = saved(peak(&AdamW8bit::new(&config).unwrap()));
    assert!((5.95..6.0).contains(&eight), "8 bits save {eight} bytes a parameter");
    let four = saved(peak(&AdamW4bit::new(&config).unwrap()));
    assert!((6.9..6.95).contains(&four), "4 bits save {four} bytes a parameter");

    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let saved = (peak(&FusedSgd::from(sgd.clone())) - peak(&Sgd8bit::new(&sgd).unwrap())) / large;
    assert!((2.95..3.0).contains(&saved), "8 bits save {saved} bytes a parameter");
}

/// The batch is so small that the peak is in the update. It holds parameters, gradients and state, and the next value and state of the
/// parameter that is being updated, one of six. On CUDA too, there are no temporary tensors of values.
#[test]
fn an_update_on_cuda_needs_the_next_value_and_state_and_no_more() {
    let large = 6.0 * 512.0 * 512.0 + 512.0 * 10.0;
    let optimizer = AdamW8bit::new(&AdamWConfig::new()).unwrap();
    let trace = mlp((512, 6), Precision::F32, &optimizer, StepOptions::default());
    let profile = BackendProfile { fixed_bytes: 0, ..BackendProfile::cuda() };
    let peak = trace.predict(1, &profile).unwrap().peak_bytes as f64 / large;
    let (all, next) = (4.0 + 4.0 + 2.03, (4.0 + 2.03) / 6.0);
    assert!((all + next..all + next + 0.2).contains(&peak), "{peak} bytes a parameter");
}
