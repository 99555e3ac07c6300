//! The parts of a step that stages run add up to the step, and hold the memory of a stage.

use kiln_memory::{BackendProfile, InFlight, StageEstimate, StepOptions, StepTrace, UpdateChunks};
use kiln_precision::Precision::F32;
use proptest::prelude::*;

use crate::estimates::{all_traces, plan_of};
use crate::steps::{adamw, flex, gpt, mlp, sgd, tiny};

const SUMMED: StepOptions = StepOptions {
    accumulate: true,
    in_order: false,
    in_parts: false,
    keep_parameters: false,
    scale_gradients: true,
    gradients_in_f32: true,
    reads_norm: true,
    update_chunks: Some(UpdateChunks { parts: 8, least: 1 << 10 }),
    batches: [2, 3],
};

fn estimates(trace: &StepTrace, cuts: &[usize], most: usize) -> Vec<StageEstimate> {
    let in_flight = InFlight { most, micro_batches: 8, last: None, sent: 0 };
    let stages = trace.stages(cuts).unwrap();
    stages.iter().map(|stage| stage.estimate_stage(4, in_flight, &flex()).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No operation is added if nothing is divided, so that both are exactly equal.
    #[test]
    fn one_stage_with_one_micro_batch_is_the_step(
        which in any::<prop::sample::Index>(), bits in any::<u64>(), batch in 1usize..100, cuda in any::<bool>(),
    ) {
        let (name, trace) = which.get(all_traces());
        let profile = if cuda { BackendProfile::cuda() } else { flex() };
        for plan in [vec![], plan_of(trace, 2, bits)] {
            let trace = trace.with_plan(&plan).unwrap();
            let expected = trace.estimate(batch, &profile).unwrap();
            let stages = trace.stages(&[]).unwrap();
            prop_assert_eq!(stages.len(), 1);
            let stage = stages[0].estimate_stage(batch, InFlight::ONE, &profile).unwrap();
            prop_assert_eq!(stage.peak_bytes, expected.peak_bytes, "{}", name);
            let seconds = (stage.forward_seconds, stage.backward_seconds, stage.update_seconds);
            prop_assert_eq!(seconds, (expected.forward_seconds, expected.backward_seconds, expected.update_seconds));
        }
    }

    /// Times differ only by the copies of the tensors that stages send. Parameters differ only by those that several stages read.
    #[test]
    fn stages_add_up_to_the_step(which in any::<prop::sample::Index>(), cut in 1usize..100, second in 1usize..100) {
        let (name, trace) = which.get(all_traces());
        let blocks = trace.blocks();
        let mut cuts = vec![1 + cut % (blocks - 1), 1 + second % (blocks - 1)];
        cuts.sort_unstable();
        cuts.dedup();
        let whole = estimates(trace, &[], 1)[0];
        let stages = estimates(trace, &cuts, 1);
        prop_assert_eq!(stages.len(), cuts.len() + 1);
        let sum = |of: fn(&StageEstimate) -> u64| stages.iter().map(of).sum::<u64>();
        prop_assert_eq!(sum(|stage| stage.optimizer_bytes), whole.optimizer_bytes, "{}", name);
        prop_assert_eq!(sum(|stage| stage.gradient_bytes), whole.gradient_bytes, "{}", name);
        let copies = sum(|stage| stage.parameter_bytes) - whole.parameter_bytes;
        let tied = name.starts_with("gpt") || name.starts_with("lean");
        prop_assert_eq!(copies > 0, tied, "{}: {}", name, copies);
        prop_assert!(stages.iter().all(|stage| stage.peak_bytes < whole.peak_bytes), "{}", name);
        for seconds in [|stage: &StageEstimate| stage.forward_seconds, |stage: &StageEstimate| stage.backward_seconds] {
            let divided: f64 = stages.iter().map(seconds).sum();
            prop_assert!(divided >= 0.999 * seconds(&whole) && divided < 1.06 * seconds(&whole), "{}: {}", name, divided / seconds(&whole));
        }
        // The saved bytes without the inputs equal those of the step, up to tensors that are not read elsewhere.
        let kept = sum(|stage| stage.activation_bytes - stage.input_bytes) as f64;
        prop_assert!((kept / whole.activation_bytes as f64 - 1.0).abs() < 0.12, "{}: {}", name, kept / whole.activation_bytes as f64);
    }
}

#[test]
fn each_micro_batch_that_waits_keeps_its_activations() {
    let trace = mlp((64, 4), F32, &sgd(), SUMMED);
    let (one, three) = (estimates(&trace, &[2], 1), estimates(&trace, &[2], 3));
    for (one, three) in one.iter().zip(&three) {
        assert_eq!(three.passes_peak_bytes, one.passes_peak_bytes + 2 * one.activation_bytes);
        let rest = |stage: &StageEstimate| {
            [
                stage.parameter_bytes,
                stage.gradient_bytes,
                stage.optimizer_bytes,
                stage.activation_bytes,
                stage.between_bytes,
            ]
        };
        assert_eq!(rest(one), rest(three));
    }
    // The input of a block of 4 samples: 64 values of 4 bytes, and the bytes that the allocator adds.
    assert_eq!(one[0].input_bytes, 0);
    assert!((4 * 64 * 4..4 * 64 * 4 + 256).contains(&one[1].input_bytes), "{}", one[1].input_bytes);
}

#[test]
fn a_parameter_that_two_stages_read_belongs_to_the_first() {
    let trace = gpt(tiny(), F32, &adamw(), SUMMED);
    let stages = estimates(&trace, &[2], 1);
    let paths =
        |stage: &StepTrace| stage.learned_parameters().iter().map(|(path, _)| (*path).to_owned()).collect::<Vec<_>>();
    // Updates are in chunks, and the list is in the order of the fields all the same.
    assert_eq!(paths(&trace), paths(&gpt(tiny(), F32, &adamw(), StepOptions::default())));
    let parts = trace.stages(&[2]).unwrap();
    let owned: Vec<Vec<String>> = parts.iter().map(paths).collect();
    assert!(owned[0].contains(&"wte.weight".to_owned()) && !owned[1].contains(&"wte.weight".to_owned()), "{owned:?}");
    let mut all = owned.concat();
    let mut expected = paths(&trace);
    all.sort();
    expected.sort();
    assert_eq!(all, expected);
    // The last stage has a copy of the embedding, without a sum of gradients and without state.
    assert!(stages[1].parameter_bytes > stages[1].gradient_bytes + 256 * 4);
    let values = stages[0].parameter_bytes - flex().parameter_bytes * parts[0].model_tensors();
    assert!(values.abs_diff(stages[0].gradient_bytes) < 8192, "{:?}", stages[0]);
}

#[test]
fn a_replica_that_owns_half_of_the_parameters_holds_half_of_the_state() {
    let trace = gpt(tiny(), F32, &adamw(), SUMMED);
    let whole = estimates(&trace, &[], 1)[0];
    let none = trace.updating(|_| false).estimate_stage(4, InFlight::ONE, &flex()).unwrap();
    let all = trace.updating(|_| true).estimate_stage(4, InFlight::ONE, &flex()).unwrap();
    assert_eq!(all, whole);
    assert!(none.optimizer_bytes < whole.optimizer_bytes / 100, "{}", none.optimizer_bytes);
    assert_eq!((none.parameter_bytes, none.gradient_bytes), (whole.parameter_bytes, whole.gradient_bytes));
    let sizes = trace.learned_parameters();
    let elements: u64 = sizes.iter().map(|(_, elements)| elements).sum();
    let names: Vec<&str> = sizes.iter().step_by(2).map(|(path, _)| *path).collect();
    let owned: u64 = sizes.iter().step_by(2).map(|(_, elements)| elements).sum();
    let half = trace.updating(|path| names.contains(&path)).estimate_stage(4, InFlight::ONE, &flex()).unwrap();
    let (found, expected) =
        (half.optimizer_bytes as f64 / whole.optimizer_bytes as f64, owned as f64 / elements as f64);
    assert!((found - expected).abs() < 0.01, "{found} {expected}");
    assert!(half.update_seconds < whole.update_seconds && half.forward_seconds == whole.forward_seconds);
}

#[test]
fn parts_are_planned_like_steps() {
    let trace = mlp((64, 4), F32, &sgd(), SUMMED);
    let two = InFlight { most: 2, micro_batches: 8, last: None, sent: 0 };
    for part in trace.stages(&[2]).unwrap() {
        assert_eq!(part.blocks(), 2);
        let plain = part.estimate_stage(64, two, &flex()).unwrap();
        let planned = part.with_plan(&plan_of(&part, 1, u64::MAX / 3 * 2)).unwrap();
        let planned = planned.estimate_stage(64, two, &flex()).unwrap();
        assert!(planned.activation_bytes < plain.activation_bytes, "{planned:?} {plain:?}");
        assert!(planned.backward_seconds > plain.backward_seconds);
        let costs = part.chain_costs(8, &flex()).unwrap();
        assert_eq!(costs.blocks.len(), 2);
    }
}

#[test]
fn cuts_that_cannot_be_are_errors() {
    let trace = mlp((64, 4), F32, &sgd(), SUMMED);
    for cuts in [&[0][..], &[4], &[3, 2], &[2, 2]] {
        let message = trace.stages(cuts).unwrap_err().to_string();
        assert!(message.contains("expected the first blocks of stages"), "{message}");
    }
    assert!(trace.stages(&[2]).unwrap()[0].estimate_stage(0, InFlight::ONE, &flex()).is_err());
}
