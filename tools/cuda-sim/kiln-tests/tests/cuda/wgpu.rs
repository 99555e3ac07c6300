//! What wgpu alone does, with `KILN_TEST_GPU=wgpu`.

use kiln_memory::BackendProfile;
use kiln_models::GptConfig;
use kiln_recovery::Patience;
use kiln_training::{Error, MemoryBudget, OptimizerConfig, Trainer};

use crate::run::device;
use crate::sim::{Card, Refuse, on_wgpu, with_card, with_cards};
use crate::sticky::lost;
use crate::support::{Ids, Net, Watched, batch, planned, settings};
use crate::tasks::{Case, Text};

/// How far pages may exceed the prediction: part of each is idle.
const PAGES: std::ops::Range<f64> = 0.85..1.45;

/// A copy to the device that finds no memory loses it: wgpu gives it up.
#[test]
fn a_copy_without_memory_loses_the_device_and_no_checkpoint() {
    if on_wgpu() {
        with_cards(&[], &["1", "2", "5"], |card, number| lost(card, &format!("copy:{number}x1:OUT_OF_MEMORY")));
    }
}

#[test]
fn a_tensor_above_the_largest_buffer_is_refused_before_the_first_step() {
    if !on_wgpu() {
        return;
    }
    with_card(&[], |card| {
        let net = Net::new(&[12, 16, 16], false, 0.0);
        let settings = settings(OptimizerConfig::adamw());
        let build = |samples| {
            let builder = planned(Ids::net(), |_| net.clone(), &settings).with_batch_size(samples);
            builder.build(&device(), &batch(0, 8)).map(|_| ())
        };
        build(64).unwrap();
        // Four terabytes of activations of a layer are in no buffer.
        let (result, count) = card.refusing(Refuse::Pages(&[]), || build(1 << 36));
        let Err(Error::BufferTooLarge { bytes, largest_buffer, micro_batch: Some(micro_batch) }) = result else {
            panic!("{result:?}")
        };
        println!("{}", result.unwrap_err());
        assert!(bytes > largest_buffer && micro_batch < 1 << 36 && count.peak - count.before < 1 << 20);
    });
}

/// Steps of a GPT: the plan's peak and what the device's pages held at most, beside what they held before the run.
fn pages(card: &Card, budget: Option<u64>) -> (u64, Vec<(u64, usize)>) {
    let config = GptConfig { vocab: 1024, context: 64, layers: 2, heads: 2, width: 128, dropout: 0.0, lean: true };
    let (case, optimizer) = (Text { samples: 32, config }, OptimizerConfig::adamw());
    let before = card.live();
    let builder = Trainer::builder(case.clone(), |device| case.model(device))
        .with_optimizer(move |model| optimizer.groups(model))
        .with_steps(10)
        .with(|settings| settings.memory.profile = Some(BackendProfile { fixed_bytes: 0, ..BackendProfile::wgpu() }))
        .with_patience(Patience::new(std::time::Duration::ZERO));
    let builder = match budget {
        Some(bytes) => builder.with_memory(MemoryBudget::Bytes(bytes)),
        None => builder,
    };
    let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
    let mut step = |step| {
        card.watch();
        let report = trainer.step(&case.batch(step)).unwrap();
        println!("step {step}: {} micro-batches, {:.1} MiB", report.micro_batches, card.peak() as f64 / 1048576.0);
        (card.peak() - before, report.micro_batches)
    };
    let steps = (0..4).map(&mut step).collect();
    let plan = trainer.plan().unwrap();
    println!("{plan}");
    (plan.peak_bytes, steps)
}

#[test]
fn a_budget_holds_the_pages() {
    if on_wgpu() {
        with_card(&[], |card| {
            let (predicted, steps) = pages(card, None);
            let whole = steps[2].0;
            assert!(PAGES.contains(&(whole as f64 / predicted as f64)), "{whole} of {predicted}");
            let budget = predicted / 10 * 7;
            device().inner().memory_cleanup();
            let (planned, steps) = pages(card, Some(budget));
            assert!(planned <= budget);
            // The pages of the first steps settle.
            for (peak, _) in &steps[2..] {
                assert!(*peak <= budget, "{peak} bytes of {budget}");
            }
        });
    }
}
