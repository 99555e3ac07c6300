//! Predicted peaks against what the heap says, phase by phase.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test ends at what goes wrong")]

mod cases;

use burn::optim::Optimizer;
use cases::{Case, Images, Mlp, Setup, Text, adamw, measure, record, sgd, warm_up};
use kiln_checkpointing::Plan;
use kiln_memory::{BackendProfile, StepOptions};
use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_precision::Precision;

/// Each thread keeps scratch memory of this size or less for matrix products; which threads have theirs already is chance.
const ALLOWANCE: f64 = 1.2 * MIB;
const MIB: f64 = (1 << 20) as f64;

/// One line for each phase of which the prediction is not near what was measured.
fn check<C: Case, O: Optimizer>(name: &str, case: &C, setup: &Setup<O>, batches: &[usize]) -> Vec<String> {
    let trace = record(case, setup);
    let mut wrong = vec![];
    for batch in batches {
        let predicted = trace.predict(*batch, &BackendProfile::flex()).unwrap();
        let measured = measure(case, setup, *batch);
        for (phase, measured) in predicted.phases.iter().zip(measured) {
            let (predicted, measured) = (phase.peak_bytes as f64, measured as f64);
            let line = format!(
                "{name}, batch {batch}, {}: predicted {:.2} MiB, measured {:.2} ({:+.1} %)",
                phase.phase,
                predicted / MIB,
                measured / MIB,
                100.0 * (predicted / measured - 1.0)
            );
            println!("{line}");
            let low = measured - predicted > 0.02 * measured + ALLOWANCE;
            if low || (measured - predicted).abs() > 0.03 * measured + ALLOWANCE {
                wrong.push(line);
            }
        }
    }
    wrong
}

/// The heap is that of the whole process: one test, so that nothing else runs.
#[test]
fn predictions_are_near_what_is_measured() {
    warm_up();
    let mlp = Mlp { width: 512, depth: 8 };
    let images = Images { config: ResNetConfig::resnet18(10).with_stem(Stem::Cifar), size: 16 };
    let text = Text(GptConfig::tiny(256, 64));
    let every = |blocks, length| Some(Plan::every(blocks, length).unwrap());
    let options = StepOptions { accumulate: true, keep_parameters: true, scale_gradients: true, ..Default::default() };

    let mut wrong = vec![];
    wrong.extend(check("mlp sgd", &mlp, &Setup::new(sgd()), &[2, 256]));
    wrong.extend(check("mlp adamw", &mlp, &Setup::new(adamw()), &[16]));
    wrong.extend(check("resnet18 sgd", &images, &Setup::new(sgd()), &[2, 8]));
    wrong.extend(check("gpt adamw", &text, &Setup::new(adamw()), &[2, 8]));
    wrong.extend(check("mlp, all options", &mlp, &Setup { options, ..Setup::new(sgd()) }, &[64]));
    for options in [
        StepOptions { accumulate: true, ..Default::default() },
        StepOptions { keep_parameters: true, ..Default::default() },
        StepOptions { scale_gradients: true, ..Default::default() },
    ] {
        wrong.extend(check(&format!("gpt, {options:?}"), &text, &Setup { options, ..Setup::new(adamw()) }, &[2]));
    }
    let planned = Setup { plan: every(9, 2), ..Setup::new(sgd()) };
    wrong.extend(check("resnet18 every:2", &images, &planned, &[8]));
    wrong.extend(check("gpt every:1", &text, &Setup { plan: every(4, 1), ..Setup::new(adamw()) }, &[8]));
    for precision in [Precision::BF16, Precision::F16] {
        let setup = Setup { precision, ..Setup::new(adamw()) };
        wrong.extend(check(&format!("gpt {precision}"), &text, &setup, &[8]));
        let setup = Setup { precision, plan: every(9, 2), ..Setup::new(sgd()) };
        wrong.extend(check(&format!("resnet18 every:2 {precision}"), &images, &setup, &[8]));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
