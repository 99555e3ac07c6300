//! Estimates are exactly the peaks and times of predictions.

use std::sync::OnceLock;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use kiln_memory::{
    BackendProfile, Prediction, Recomputed, Recorder, StepEstimate, StepOptions, StepTrace, UpdateChunks, record_step,
};
use kiln_precision::Precision::{BF16, F16, F32};
use proptest::prelude::*;

use crate::steps::{adamw, flex, models, sgd};

/// All models in all precisions, under the options of a step.
pub(crate) fn all_traces() -> &'static [(String, StepTrace)] {
    static TRACES: OnceLock<Vec<(String, StepTrace)>> = OnceLock::new();
    TRACES.get_or_init(|| {
        let plain = StepOptions::default();
        let summed = StepOptions { accumulate: true, scale_gradients: true, reads_norm: true, ..plain };
        let chunks = Some(UpdateChunks { parts: 4, least: 1024 });
        let chunked = StepOptions { keep_parameters: true, update_chunks: chunks, ..plain };
        let mut traces = vec![];
        for precision in [F32, F16, BF16] {
            for (how, options) in [("plain", plain), ("summed", summed), ("chunked", chunked)] {
                let all =
                    [("sgd", models(precision, &sgd(), options)), ("adamw", models(precision, &adamw(), options))];
                for (optimizer, models) in all {
                    let named = |(model, trace)| (format!("{model} {precision} {how} {optimizer}"), trace);
                    traces.extend(models.into_iter().map(named));
                }
            }
        }
        traces
    })
}

/// A plan from one number. Two bits for each segment of `length` blocks say whether it is plain, recomputed or offloaded.
pub(crate) fn plan_of(trace: &StepTrace, length: usize, bits: u64) -> Vec<Recomputed> {
    let blocks = trace.blocks();
    let segments = (0..blocks).step_by(length).map(|from| from..blocks.min(from + length)).enumerate();
    let chosen = segments.filter_map(|(index, blocks)| match bits >> (2 * index) & 3 {
        0 | 1 => None,
        bits => Some(Recomputed { blocks, offloaded: bits == 3, streamed: false }),
    });
    chosen.collect()
}

#[track_caller]
fn assert_same(name: &str, estimate: &StepEstimate, prediction: &Prediction) {
    assert_eq!(estimate.peak_bytes, prediction.peak_bytes, "{name}");
    // Those of a prediction have the device's alignment, and workspaces are among them.
    let largest = prediction.buffers.iter().map(|buffer| buffer.bytes).max().unwrap();
    assert!(
        (1..=largest).contains(&estimate.largest_buffer_bytes),
        "{name}: {} {largest}",
        estimate.largest_buffer_bytes
    );
    let seconds = [estimate.forward_seconds, estimate.backward_seconds, estimate.update_seconds];
    for (seconds, phase) in seconds.into_iter().zip(&prediction.phases) {
        let operations = &prediction.operations[phase.first..phase.end];
        assert_eq!(
            seconds,
            operations.iter().map(|operation| operation.seconds).sum::<f64>(),
            "{name}, {}",
            phase.phase
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn an_estimate_is_the_peak_and_the_time_of_the_prediction(
        which in any::<prop::sample::Index>(), length in 1usize..5, bits in any::<u64>(), batch in 1usize..300,
        loader in 0u64..1 << 30, cuda in any::<bool>(),
    ) {
        let (name, trace) = which.get(all_traces());
        let profile = if cuda { BackendProfile::cuda() } else { flex() }.with_loader_bytes(loader);
        let planned = trace.with_plan(&plan_of(trace, length, bits)).unwrap();
        for trace in [trace, &planned] {
            let (estimate, prediction) = (trace.estimate(batch, &profile).unwrap(), trace.predict(batch, &profile).unwrap());
            assert_same(name, &estimate, &prediction);
        }
    }
}

#[test]
fn a_batch_that_cannot_be_predicted_cannot_be_estimated() {
    let (_, trace) = &all_traces()[0];
    for batch in [0, 1 << 40, usize::MAX] {
        let error = trace.estimate(batch, &flex()).unwrap_err();
        assert_eq!(error.to_string(), trace.predict(batch, &flex()).unwrap_err().to_string());
    }
}

/// Eight blocks whose backward pass reads their input alone, between two layers.
fn sines() -> StepTrace {
    let build = |device: &Device| [64, 64].map(|width| LinearConfig::new(64, width).init(device)).to_vec();
    let forward = |layers: &Vec<Linear>, step: &Recorder| {
        let mut x = layers[0].forward(Tensor::<2>::ones([step.batch(), 64], step.device()));
        for _ in 0..8 {
            step.cut();
            x = x.sin();
        }
        step.cut();
        layers[1].forward(x).mean()
    };
    record_step(build, forward, &sgd(), StepOptions::default()).unwrap()
}

#[test]
fn blocks_that_keep_nothing_but_their_input_give_it_back() {
    let (trace, batch) = (sines(), 4000);
    let input = 4 * 64 * batch as u64;
    let plan = |length, offloaded| -> Vec<Recomputed> {
        let blocks = (0..8).step_by(length).map(|first| first..first + length);
        blocks.map(|blocks| Recomputed { blocks, offloaded, streamed: false }).collect()
    };
    let peak = |plan: &[Recomputed]| trace.with_plan(plan).unwrap().estimate(batch, &flex()).unwrap().peak_bytes;
    let plain = peak(&[]);
    // The input of each block is moved to the host, or that of every second one is kept.
    assert!(plain - peak(&plan(1, true)) > 5 * input, "{plain} {}", peak(&plan(1, true)));
    assert!(plain - peak(&plan(2, false)) > 2 * input, "{plain} {}", peak(&plan(2, false)));
    assert!(peak(&plan(1, false)).abs_diff(plain) <= input, "{plain} {}", peak(&plan(1, false)));
    let costs = trace.chain_costs(batch, &flex()).unwrap();
    // The gradient of the first layer's bias begins in the first block.
    let fits = |bytes: [u64; 2]| (input..input + 256).contains(&bytes[0]) && bytes[1] < 512;
    assert!(costs.blocks.iter().all(|block| fits([block.input_bytes, block.gradient_bytes])), "{costs:?}");
}
