//! What wgpu alone does, with `KILN_TEST_GPU=wgpu` and `=vulkan`.

use std::time::Duration;

use kiln_memory::BackendProfile;
use kiln_models::GptConfig;
use kiln_recovery::Patience;
use kiln_training::{Error, MemoryBudget, OptimizerConfig, Trainer, TrainerBuilder};

use crate::run::device;
use crate::sim::{Card, Refuse, on_wgpu, with_card, with_cards};
use crate::sticky::lost;
use crate::support::Watched;
use crate::tasks::{Case, Text};

/// A copy to the device that finds no memory loses it: wgpu gives it up.
#[test]
fn a_copy_without_memory_loses_the_device_and_no_checkpoint() {
    if on_wgpu() {
        with_cards(&[], &["1", "2"], |card, number| {
            assert_eq!(lost(card, &format!("copy:{number}x1:OUT_OF_MEMORY")), 1);
        });
    }
}

fn gpt() -> Text {
    let config = GptConfig { vocab: 256, context: 64, layers: 2, heads: 2, width: 64, dropout: 0.0, lean: true };
    Text { samples: 16, config }
}

fn builder() -> TrainerBuilder<'static, Text> {
    Trainer::builder(gpt(), |device| gpt().model(device))
        .with_optimizer(|model| OptimizerConfig::adamw().groups(model))
        .with_steps(10)
        .with_patience(Patience::new(Duration::ZERO))
}

#[test]
fn a_tensor_above_the_largest_buffer_is_refused_before_the_first_step() {
    if !on_wgpu() {
        return;
    }
    with_card(&[], |card| {
        let build = |batch| builder().with_batch_size(batch).build(&device(), &gpt().batch(0)).map(|_| ());
        // Pages of the device itself and of parameters are there from then on.
        build(16).unwrap();
        // Activations of 64 GiB are in no buffer.
        let (result, count) = card.refusing(Refuse::Pages(&[]), || build(1 << 20));
        let error = result.unwrap_err();
        println!("{error}");
        let Error::BufferTooLarge { bytes, largest_buffer, micro_batch: Some(micro_batch) } = error else {
            panic!("{error:?}")
        };
        assert!(bytes > largest_buffer && micro_batch < 1 << 20 && count.peak - count.before < 1 << 20, "{count:?}");
    });
}

/// The most bytes in pages in each of some steps.
fn pages(card: &Card, budget: Option<u64>) -> Vec<u64> {
    let profile = BackendProfile { fixed_bytes: 0, ..BackendProfile::wgpu() };
    let builder = builder().with(|settings| settings.memory.profile = Some(profile));
    let builder = match budget {
        Some(bytes) => builder.with_memory(MemoryBudget::Bytes(bytes)),
        None => builder,
    };
    let mut trainer = Watched::build_on(builder, &device(), &gpt().batch(0));
    let step = |step| {
        card.watch();
        let report = trainer.step(&gpt().batch(step)).unwrap();
        println!("step {step}: {} micro-batches, {} KiB in pages", report.micro_batches, card.peak() >> 10);
        card.peak()
    };
    let steps = (0..5).map(step).collect();
    println!("{}", trainer.plan().unwrap());
    steps
}

#[test]
fn a_budget_holds_the_pages() {
    if on_wgpu() {
        with_card(&[], |card| {
            let whole = *pages(card, None).last().unwrap();
            device().inner().memory_cleanup();
            let budget = whole / 10 * 7;
            let steps = pages(card, Some(budget));
            // The pages of the first steps settle.
            assert!(steps[2..].iter().all(|peak| *peak <= budget), "{steps:?} of {budget}");
        });
    }
}
