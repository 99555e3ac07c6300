//! Refused pages of a step: the step succeeds all the same, and its result is that of a step without failures.

use kiln_models::GptConfig;
use kiln_training::OptimizerConfig;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::run::{Then, Third};
use crate::sim::{Card, Refuse, with_card};
use crate::tasks::{Case, Images, Text};

/// The number of disturbed steps.
struct Share {
    /// Steps that lose one page, evenly spread over all pages of a step.
    singles: usize,
    /// Steps that lose two pages, at random.
    pairs: usize,
}

impl Share {
    /// These numbers. With `KILN_ALLOCATIONS=all`, every page of the step and many more pairs.
    fn of(singles: usize, pairs: usize) -> Self {
        match std::env::var("KILN_ALLOCATIONS").as_deref() {
            Ok("all") => Self { singles: usize::MAX, pairs: 10 * pairs },
            _ => Self { singles, pairs },
        }
    }
}

/// Numbers of pages to refuse, for each step.
fn plan(pages: u64, share: &Share) -> Vec<Vec<u64>> {
    let mut random = StdRng::seed_from_u64(7);
    // The last page belongs to the update.
    let singles = (1..=pages).rev().step_by((pages as usize).div_ceil(share.singles)).map(|number| vec![number]);
    // The second page may belong to the attempt after the first one.
    let pair = |_| vec![random.random_range(1..=pages), random.random_range(1..=2 * pages)];
    let pairs: Vec<_> = (0..share.pairs).map(pair).collect();
    singles.chain(pairs).collect()
}

fn every_page<C: Case>(card: &Card, case: &C, optimizer: OptimizerConfig, then: Then, share: &Share) {
    let third = Third::new(card, case, optimizer);
    let undisturbed = third.step(then, Refuse::Pages(&[]));
    assert_eq!((undisturbed.report.failures, undisturbed.count.refused), (0, 0));
    let plan = plan(undisturbed.count.seen, share);
    println!("{} pages a step, {} disturbed steps", undisturbed.count.seen, plan.len());
    let (mut failed, mut alike, mut in_update) = (0, 0, 0);
    for numbers in &plan {
        let done = third.step(then, Refuse::Pages(numbers));
        let context = format!("refused {numbers:?} of {}, {:?}", undisturbed.count.seen, done.count);
        if !done.same_bits(&undisturbed) {
            println!("{context}: {} apart, {}", done.distance(&undisturbed), done.report.micro_batches);
        }
        // The number of pages varies slightly between steps.
        assert!(done.count.refused > 0 || numbers[0] + 2 > undisturbed.count.seen, "{context}");
        done.assert_as(&undisturbed, &context);
        failed += usize::from(done.report.failures > 0);
        alike += usize::from(done.cut_alike());
        in_update += usize::from(done.report.failures > done.failures.len());
    }
    // A refused page may turn out to be unnecessary.
    assert!(4 * failed > 3 * plan.len(), "{failed} of {} steps saw a failure", plan.len());
    assert!(in_update > 0, "no page of the update was refused");
    assert!(2 * alike > plan.len(), "{alike} of {} were cut alike", plan.len());
}

fn net(batch_norm: bool) -> Images {
    Images { samples: 8, side: 8, channels: 4, batch_norm }
}

fn gpt() -> Text {
    Text {
        samples: 4,
        config: GptConfig { vocab: 16, context: 8, layers: 1, heads: 2, width: 16, dropout: 0.0, lean: true },
    }
}

#[test]
fn a_net_with_batch_norm_in_the_same_split() {
    with_card(&[], |card| {
        every_page(card, &net(true), OptimizerConfig::sgd(), Then::Again, &Share::of(usize::MAX, 20))
    });
}

#[test]
fn a_gpt_in_the_same_split() {
    with_card(&[], |card| every_page(card, &gpt(), OptimizerConfig::adamw(), Then::Again, &Share::of(usize::MAX, 20)));
}

#[test]
fn a_net_as_the_standard_ladder_has_it() {
    with_card(&[], |card| every_page(card, &net(false), OptimizerConfig::sgd(), Then::Standard, &Share::of(60, 40)));
}

/// Uses SGD: the gradients of a key's bias are 0 up to rounding, from which AdamW makes updates as large as all others.
#[test]
fn a_gpt_as_the_standard_ladder_has_it() {
    with_card(&[], |card| every_page(card, &gpt(), OptimizerConfig::sgd(), Then::Standard, &Share::of(60, 40)));
}

/// Refuses all memory beyond a limit instead of single pages: the step ends up with micro-batches that fit.
#[test]
fn memory_for_a_part_of_the_step() {
    with_card(&[], |card| {
        let case = Images { samples: 32, side: 16, channels: 8, batch_norm: false };
        let third = Third::new(card, &case, OptimizerConfig::sgd());
        let undisturbed = third.step(Then::Standard, Refuse::Pages(&[]));
        let needed = undisturbed.count.peak - undisturbed.count.before;
        let mut parts = vec![];
        for percent in [120, 100, 80, 50, 30] {
            let room = needed * percent / 100;
            let done = third.step(Then::Standard, Refuse::Beyond(room));
            let context = format!("{percent} %: {:?}", done.count);
            println!("{context}: {} micro-batches, {:?}", done.report.micro_batches, done.failures);
            done.assert_as(&undisturbed, &context);
            // CubeCL cleans up once by itself, which may suffice.
            assert!(
                if percent < 50 { done.report.failures > 0 } else { percent < 100 || done.report.failures == 0 },
                "{context}"
            );
            parts.push(done.report.micro_batches);
        }
        assert!(parts[..2] == [1, 1] && parts.is_sorted() && parts[4] > 1, "{parts:?}");
    });
}

/// This includes the optimizer's moments: a run resumes with all of a checkpoint, or not at all.
#[test]
fn a_checkpoint_is_loaded_whole_or_not_at_all() {
    with_card(&[], |card| {
        let case = net(true);
        let third = Third::new(card, &case, OptimizerConfig::adamw());
        let (_, all, undisturbed) = third.resumed(Refuse::Pages(&[]));
        let mut failed = 0;
        for numbers in plan(all.seen, &Share::of(8, 0)) {
            let (resumed, count, done) = third.resumed(Refuse::Pages(&numbers));
            let context = format!("refused {numbers:?} of {}, {count:?}, {resumed:?}", all.seen);
            assert!(count.refused > 0, "{context}");
            assert!(matches!(resumed, Ok(()) | Err(kiln_training::Error::Memory(_))), "{context}");
            done.assert_as(&undisturbed, &context);
            failed += usize::from(resumed.is_err());
        }
        assert!(failed > 0, "no page was needed");
    });
}
