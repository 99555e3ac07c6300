//! The operations of kiln-layers in a trace.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use kiln_layers::{Mask, self_attention};
use kiln_memory::{BackendProfile, Category, Error, Prediction, Recomputed, StepOptions, StepTrace, record_step};
use kiln_precision::Precision::{BF16, F32};

use crate::lean::LeanConfig;
use crate::steps::{adamw, flex, lean, sgd, small};

fn count(prediction: &Prediction, name: &str) -> usize {
    prediction.operations.iter().filter(|operation| operation.name == name).count()
}

#[test]
fn operations_and_buffers_are_named_by_their_ids() {
    let trace = lean(small(), F32, &adamw(), StepOptions::default());
    let prediction = trace.predict(8, &flex()).unwrap();
    assert_eq!(count(&prediction, "kiln::attention"), 4);
    assert_eq!(count(&prediction, "kiln::attention_backward"), 4);
    assert_eq!(count(&prediction, "kiln::batch_norm_backward"), 4);
    assert_eq!(count(&prediction, "kiln::linear_cross_entropy_gradients"), 1);
    assert!(!prediction.operations.iter().any(|operation| operation.name.contains("Custom")));
    let workspace = prediction.buffers.iter().find(|buffer| {
        buffer.category == Category::Workspace && buffer.operation == "kiln::linear_cross_entropy_gradients"
    });
    // The workspace holds at least the logits.
    assert!(workspace.unwrap().bytes >= 4 * 8 * 64 * 256);
}

#[test]
fn gradients_are_written_in_place_on_the_cpu() {
    let trace = lean(small(), BF16, &sgd(), StepOptions::default());
    let made = |prediction: &Prediction| {
        let mut tensors = prediction.buffers.iter().filter(|buffer| buffer.category != Category::Workspace);
        tensors.any(|buffer| buffer.operation.ends_with("norm_backward") && buffer.shape == [8, 64, 64])
    };
    let [flex, cuda] = [flex(), BackendProfile::cuda()].map(|profile| trace.predict(8, &profile).unwrap());
    assert!(!made(&flex));
    assert!(made(&cuda));
}

#[test]
fn a_plan_runs_them_again() {
    let trace = lean(small(), BF16, &adamw(), StepOptions::default());
    let plan = [Recomputed { blocks: 1..3, offloaded: false, streamed: false }];
    let planned = trace.with_plan(&plan).unwrap();
    let seconds = |trace: &StepTrace, profile: &BackendProfile| {
        let prediction = trace.predict(8, profile).unwrap();
        let attention = prediction.operations.iter().filter(|operation| operation.name == "kiln::attention");
        attention.map(|operation| operation.seconds).sum::<f64>()
    };
    for profile in [flex(), BackendProfile::cuda()] {
        assert_eq!(count(&planned.predict(8, &profile).unwrap(), "kiln::attention"), 6);
        // The repeated operations take as long, so they have their scalars.
        let ratio = seconds(&planned, &profile) / seconds(&trace, &profile);
        assert!((ratio - 1.5).abs() < 1e-9, "{ratio}");
    }
    // The work of attention grows with the square of the length.
    let profile = BackendProfile { half_flops: 4e10, ..flex() };
    let longer = lean(LeanConfig { time: 2048, ..small() }, BF16, &adamw(), StepOptions::default());
    let [short, long] =
        [&trace, &longer].map(|trace| trace.chain_costs(8, &profile).unwrap().blocks[0].forward_seconds);
    assert!(long > 40.0 * short, "{long} {short}");
}

#[test]
fn the_time_of_attention_is_that_of_its_products() {
    for (name, products) in [("kiln::attention", 2.0), ("kiln::attention_backward", 5.0)] {
        for time in [1024usize, 2048] {
            let trace = lean(LeanConfig { time, ..small() }, F32, &sgd(), StepOptions::default());
            let profile = BackendProfile { launch: 0.0, ..flex() };
            let operations = trace.predict(2, &profile).unwrap().operations;
            let seconds = operations.iter().find(|operation| operation.name == name).unwrap().seconds;
            // Half of the blocks are hidden. The blocks at the diagonal are computed whole.
            let pairs = (time * (time + 128) / 2) as f64;
            let multiply_adds = products * 2.0 * pairs * 64.0;
            assert!((seconds * profile.flops / (2.0 * multiply_adds) - 1.0).abs() < 1e-6, "{name}: {seconds}");
        }
    }
}

#[test]
fn scalars_that_depend_on_the_batch_are_refused() {
    let forward = |layer: &Linear, step: &kiln_memory::Recorder| {
        let qkv = layer.forward(Tensor::<3>::zeros([4, 8, 36], step.device()));
        self_attention(qkv, step.batch(), Mask::None).unwrap().square().mean()
    };
    let build = |device: &Device| LinearConfig::new(36, 36).init(device);
    let error = record_step(build, forward, &sgd(), StepOptions::default()).unwrap_err();
    let Error::Shape { operation, .. } = &error else { panic!("{error}") };
    assert_eq!(operation, "kiln::attention");
}
