#![allow(warnings)]
mod cases;
use burn::optim::Optimizer;
use cases::*;
use kiln_checkpointing::Plan;
use kiln_memory::{BackendProfile, StepOptions};
use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_precision::Precision;
const MIB: f64 = (1 << 20) as f64;
fn look<C: Case, O: Optimizer>(name: &str, case: &C, setup: &Setup<O>, batches: &[usize]) {
    let trace = record(case, setup);
    let repeat: usize = std::env::var("REPEAT").map_or(1, |r| r.parse().unwrap());
    for batch in batches {
        let predicted = trace.predict(*batch, &BackendProfile::flex()).unwrap();
        for _ in 0..repeat {
            let measured = measure(case, setup, *batch);
            print!("{name} {batch}:");
            for (phase, measured) in predicted.phases.iter().zip(measured) {
                print!(
                    " {} {:.2} / {:.2} ({:+.2} %)",
                    phase.phase,
                    phase.peak_bytes as f64 / MIB,
                    measured as f64 / MIB,
                    100.0 * (phase.peak_bytes as f64 / measured as f64 - 1.0)
                );
            }
            println!();
        }
        if std::env::var("HOLDERS").is_ok() {
            for phase in &predicted.phases {
                let at = (phase.first..phase.end).max_by_key(|i| predicted.operations[*i].live_bytes).unwrap();
                println!(
                    "   {} at {at} {} {:?}",
                    phase.phase,
                    predicted.operations[at].name,
                    predicted
                        .breakdown_at(at)
                        .0
                        .iter()
                        .map(|(c, b)| format!("{c} {:.2}", *b as f64 / MIB))
                        .collect::<Vec<_>>()
                );
                for b in predicted.alive_at(at).iter().take(12) {
                    println!(
                        "      {:9.3} {} {:?} {:?} {} {}..{}",
                        b.bytes as f64 / MIB,
                        b.category,
                        b.path,
                        b.shape,
                        b.operation,
                        b.born,
                        b.dies
                    );
                }
            }
        }
    }
}
#[test]
fn explore() {
    warm_up();
    let only = std::env::var("ONLY").unwrap_or_default();
    let mlp = Mlp { width: 256, depth: 8 };
    let r18 = Images { config: ResNetConfig::resnet18(10).with_stem(Stem::Cifar), size: 32 };
    for (p, precision) in [("f32", Precision::F32), ("bf16", Precision::BF16), ("f16", Precision::F16)] {
        for (e, plan) in [("none", None), ("1", Some(1)), ("2", Some(2)), ("4", Some(4))] {
            let every = |blocks| plan.map(|k| Plan::every(blocks, k).unwrap());
            let want = |n: &str| only.split(',').any(|o| o == format!("{n}-{p}-{e}"));
            if want("mlp") {
                look(&format!("mlp {p} {e}"), &mlp, &Setup { precision, plan: every(8), ..Setup::new(adamw()) }, &[64]);
            }
            if want("mlp2") {
                look(
                    &format!("mlp {p} {e}"),
                    &mlp,
                    &Setup { precision, plan: every(8), ..Setup::new(sgd()) },
                    &[2, 16, 128, 512],
                );
            }
            if want("r18") {
                look(&format!("r18 {p} {e}"), &r18, &Setup { precision, plan: every(9), ..Setup::new(sgd()) }, &[16]);
            }
            if want("gpt") {
                look(
                    &format!("gpt {p} {e}"),
                    &Text(GptConfig::tiny(256, 64)),
                    &Setup { precision, plan: every(4), ..Setup::new(adamw()) },
                    &[2, 16],
                );
            }
        }
    }
}
