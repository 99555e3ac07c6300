//! The predicted peak of a step compared with the driver's allocations. Kernels do nothing here: values do not matter.
//!
//! The prediction counts live tensors. The driver allocates pages, parts of which are idle between tensors. To measure tensors alone, a
//! step is also taken while CubeCL allocates each tensor from the driver and frees it at once.

use std::ops::Range;

use burn::backend::DispatchDevice;
use kiln_memory::BackendProfile;
use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision};
use kiln_training::{OptimizerConfig, Recompute};

use crate::run::device;
use crate::sim::{Card, gpu, on_wgpu, with_cards_alone};
use crate::support::{Settings, Watched, planned, settings};
use crate::tasks::{Case, Residual, Text};

const MIB: f64 = 1048576.0;

/// A technique by name.
const TECHNIQUES: [&str; 5] = ["plain", "bf16", "micro-batches", "every block", "all of it"];
const LONG: [&str; 2] = ["plain", "bf16"];

/// Techniques of small steps. On wgpu kernels run, so that one has to do.
fn of_small() -> &'static [&'static str] {
    if on_wgpu() { &["plain"] } else { &["plain", "f16", "micro-batches", "every block"] }
}

/// Where burn fuses operations into one kernel, the tensors between them do not exist.
const LIVE: Range<f64> = 0.8..1.02;
/// The layout of CubeCL's pages depends on when it frees tensors: one step needs 0.9 to 1.3 times as much from run to run.
const PAGES: Range<f64> = 0.85..1.45;
/// The pages of small steps are partly empty.
const PAGES_OF_SMALL: Range<f64> = 0.85..1.9;
/// Steps that are measured at most.
const STEPS: u64 = 6;

/// The peak of a step after the first two, in bytes: the prediction for tensors alone, and the driver's allocations.
///
/// CubeCL frees tensors on a thread of its own. If that thread waits for a core, tensors live longer than the step needs them, which can
/// only add to the peak. So no other test runs meanwhile, the smallest peak of a few steps counts, and the first one below `most` times
/// the prediction is enough.
fn peaks<C: Case>(
    card: &Card,
    case: &C,
    samples: usize,
    optimizer: OptimizerConfig,
    technique: &str,
    most: f64,
) -> [u64; 2] {
    let all = technique == "all of it";
    let precision = match technique {
        "f16" => Precision::F16,
        "bf16" | "all of it" => Precision::BF16,
        _ => Precision::F32,
    };
    let micro_batch = (technique == "micro-batches" || all).then_some(samples / 4);
    let settings = Settings { policy: Policy::new(precision), micro_batch, ..settings(optimizer) };
    let builder = planned(case.clone(), |device| case.model(device), &settings);
    let builder = if technique == "every block" || all { builder.with_recompute(Recompute::Every(1)) } else { builder };
    let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
    let predicted = trainer.predict(samples).unwrap();
    let profile = if on_wgpu() { BackendProfile::wgpu() } else { BackendProfile::cuda() };
    let predicted = predicted.peak_bytes - profile.fixed_bytes;
    let mut peak = u64::MAX;
    card.without_kernels(|| {
        for step in 0..2 {
            let _ = trainer.step(&case.batch(step)).unwrap();
        }
        for step in 2..2 + STEPS {
            device().inner().memory_cleanup();
            card.watch();
            let _ = trainer.step(&case.batch(step)).unwrap();
            peak = peak.min(card.peak());
            if (peak as f64) < most * predicted as f64 {
                break;
            }
        }
    });
    [predicted, peak]
}

fn measured<C: Case + Sync>(
    card: &Card,
    case: &C,
    samples: usize,
    optimizer: OptimizerConfig,
    technique: &str,
    of_pages: Range<f64>,
) {
    let DispatchDevice::Cube(cube) = gpu().as_dispatch().clone() else { unreachable!() };
    let peaks = |most| peaks(card, case, samples, optimizer, technique, most);
    // wgpu frees a buffer when it looks after its device the next time, so that tensors alone cannot be measured there.
    if on_wgpu() {
        let [predicted, pages] = peaks(of_pages.end);
        let share = pages as f64 / predicted as f64;
        println!("{technique}: {:.1} MiB of tensors predicted, {share:.2} of it in pages", predicted as f64 / MIB);
        return assert!(of_pages.contains(&share), "{pages}");
    }
    let [predicted, live] = cube.client().memory_dedicated_allocation((), |()| peaks(LIVE.end));
    device().inner().memory_cleanup();
    let [_, pages] = peaks(of_pages.end);
    let share = |bytes: u64| bytes as f64 / predicted as f64;
    println!(
        "{technique}: {:.1} MiB of tensors predicted, {:.1} live ({:.3}), {:.1} in pages ({:.2})",
        predicted as f64 / MIB,
        live as f64 / MIB,
        share(live),
        pages as f64 / MIB,
        share(pages),
    );
    assert!(LIVE.contains(&share(live)), "{live}");
    assert!(of_pages.contains(&share(pages)), "{pages}");
}

/// Small enough for a device that computes on the processor.
#[test]
fn steps_of_a_small_gpt() {
    with_cards_alone(&[], of_small(), |card, technique| {
        let config = GptConfig { vocab: 512, context: 128, layers: 2, heads: 4, width: 128, dropout: 0.0, lean: true };
        measured(card, &Text { samples: 8, config }, 8, OptimizerConfig::adamw(), technique, PAGES_OF_SMALL);
    });
}

#[test]
fn steps_of_a_small_resnet() {
    with_cards_alone(&[], of_small(), |card, technique| {
        let config = ResNetConfig::resnet18(10).with_stem(Stem::Cifar).with_width(16);
        measured(
            card,
            &Residual { samples: 32, side: 32, config },
            32,
            OptimizerConfig::sgd(),
            technique,
            PAGES_OF_SMALL,
        );
    });
}

#[test]
fn steps_of_a_gpt() {
    with_cards_alone(&[], &TECHNIQUES, |card, technique| {
        let config = GptConfig { vocab: 4096, context: 256, layers: 6, heads: 6, width: 384, dropout: 0.0, lean: true };
        measured(card, &Text { samples: 16, config }, 16, OptimizerConfig::adamw(), technique, PAGES);
    });
}

/// With texts so short that the update is a large part of the peak.
#[test]
fn steps_of_a_gpt_with_moments_of_8_bits() {
    with_cards_alone(&[], &LONG, |card, technique| {
        let config = GptConfig { vocab: 4096, context: 16, layers: 6, heads: 6, width: 384, dropout: 0.0, lean: true };
        let optimizer = OptimizerConfig::named("adamw8bit").unwrap();
        measured(card, &Text { samples: 16, config }, 16, optimizer, technique, PAGES);
    });
}

#[test]
fn steps_of_a_gpt_with_long_texts() {
    with_cards_alone(&[], &LONG, |card, technique| {
        let config = GptConfig { vocab: 512, context: 1024, layers: 2, heads: 6, width: 384, dropout: 0.0, lean: true };
        measured(card, &Text { samples: 6, config }, 6, OptimizerConfig::adamw(), technique, PAGES);
    });
}

#[test]
fn steps_of_a_resnet() {
    with_cards_alone(&[], &TECHNIQUES, |card, technique| {
        let config = ResNetConfig::resnet18(100).with_stem(Stem::Cifar);
        measured(card, &Residual { samples: 64, side: 32, config }, 64, OptimizerConfig::sgd(), technique, PAGES);
    });
}
