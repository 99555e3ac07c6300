//! Stages keep the bits in any division, which the laws try in chosen ones, and refuse divisions that are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::tensor::Tensor;
use kiln_checkpointing::{Mode, Plan, PlanSegment};
use kiln_parallel::{Communicator, Schedule};
use kiln_training::Error;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::case::{Case, Classify, Parts, SCHEDULES, Way, on_all, stages};
use crate::support::{device, turn};

#[test]
fn divisions_that_are_none_and_batches_without_a_loss_are_refused() {
    let _turn = turn();
    let plain = Case::chain(6, 7, 2);
    // What is between two chains counts as a block.
    for (chains, blocks) in [(vec![vec![0, 1, 2], vec![3, 4, 5]], 7), (vec![vec![2], vec![4]], 3)] {
        let case = Case { task: Classify { chains, ..plain.task.clone() }, ..plain.clone() };
        for refused in [stages(blocks + 1, Schedule::GPipe), stages(2, Schedule::GPipe).with_cuts(vec![blocks])] {
            let built = case.builder(&Way::stages(refused), None).build(&device(), &case.batch(0));
            assert!(matches!(built, Err(Error::Parallel(_))));
        }
    }
    let case = Case { tokens: |_| 0, ..plain };
    for way in [Way::default(), Way::stages(stages(2, Schedule::GPipe))] {
        let error = case.trainer(&way).step(&case.batch(0)).unwrap_err();
        assert!(matches!(error, Error::NothingToLearn { step: 1 }), "{error}");
    }
}

#[test]
fn stages_have_the_masks_of_a_run_without() {
    let _turn = turn();
    for (chains, blocks) in [(vec![vec![0, 1, 2, 3]], 4), (vec![vec![0, 1], vec![2, 3]], 5)] {
        let case = Case::chain(4, 7, 2).with_parts(|parts| Parts { dropout: 0.3, ..parts });
        let case = Case { task: Classify { chains, ..case.task.clone() }, ..case };
        let expected = case.run(&Way::default());
        for cuts in (1..blocks).map(|cut| vec![cut]).chain([vec![1, 3], vec![1, 2, 3]]) {
            for schedule in SCHEDULES {
                case.check(&Way::stages(stages(cuts.len() + 1, schedule).with_cuts(cuts.clone())), &expected);
            }
        }
    }
}

/// Counts the messages that a replica exchanges with the others.
#[derive(Debug)]
struct Counted(Arc<dyn Communicator>, Arc<AtomicUsize>);

impl Communicator for Counted {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn replicas(&self) -> usize {
        self.0.replicas()
    }

    fn in_this_process(&self) -> usize {
        self.0.in_this_process()
    }

    fn exchange(&self, message: &[u8]) -> Result<Vec<Vec<u8>>, kiln_parallel::Error> {
        self.1.fetch_add(1, Relaxed);
        self.0.exchange(message)
    }

    fn all_reduce(&self, values: Tensor<1>) -> Result<Tensor<1>, kiln_parallel::Error> {
        self.0.all_reduce(values)
    }

    fn reduce_scatter(&self, parts: Vec<Tensor<1>>) -> Result<Tensor<1>, kiln_parallel::Error> {
        self.0.reduce_scatter(parts)
    }

    fn all_gather(&self, values: Tensor<1>, lengths: &[usize]) -> Result<Vec<Tensor<1>>, kiln_parallel::Error> {
        self.0.all_gather(values, lengths)
    }

    fn leave(&self, reason: &str) {
        self.0.leave(reason);
    }
}

/// With stages, replicas agree on written tensors and on the peak as without stages: if one lacks memory, all try again.
#[test]
fn replicas_in_stages_agree_as_often_as_whole_ones() {
    let _turn = turn();
    let case = Case::chain(4, 6, 2);
    let messages = |way: &Way| -> Vec<usize> {
        on_all(2, |communicator| {
            let (rank, count) = (communicator.rank(), Arc::new(AtomicUsize::new(0)));
            let builder = case.builder(way, Some(Arc::new(Counted(communicator, count.clone()))));
            let mut trainer = builder.build(&device(), &case.batch(0)).unwrap();
            let before = count.load(Relaxed);
            let _ = trainer.step(&case.batch(rank as u64)).unwrap();
            count.load(Relaxed) - before
        })
    };
    assert_eq!(messages(&Way::stages(stages(2, Schedule::GPipe))), messages(&Way::default()));
}

/// Any division of any model under any schedule.
fn cases() -> impl Strategy<Value = (Case, Way)> {
    let sizes = (3..10usize, 1..5usize);
    let parts = (any::<bool>(), any::<bool>(), any::<bool>(), (0..7usize, 0..7usize));
    let plan = prop::option::of(prop::collection::vec((1..4usize, any::<bool>()), 7));
    let two_chains = (any::<bool>(), 1..6usize);
    (2..7usize, sizes, parts, plan, two_chains, prop::collection::btree_set(1..7usize, 0..4), 0..3usize).prop_map(
        |(blocks, (size, micro_batch), (norms, tied, frozen_first, frozen), plan, (two, at), cuts, schedule)| {
            let case = Case::chain(blocks, size, micro_batch).steps(2);
            let frozen = frozen.0.min(frozen.1)..frozen.0.max(frozen.1);
            // Something must learn.
            let frozen_first = frozen_first && norms;
            let case = case.with_parts(|parts| Parts { norms, tied, frozen_first, frozen, ..parts });
            let (chains, all) = match two && at < blocks {
                true => (vec![(0..at).collect(), (at..blocks).collect()], blocks + 1),
                false => (vec![(0..blocks).collect()], blocks),
            };
            let plan = plan.map(|segments| {
                let (mut planned, mut next) = (vec![], 0);
                for (length, recomputed) in segments {
                    let end = (next + length).min(all);
                    let mode = if recomputed { Mode::Recompute } else { Mode::Plain };
                    if next < end {
                        planned.push(PlanSegment { blocks: next..end, mode });
                    }
                    next = end;
                }
                Plan::try_from(planned).unwrap()
            });
            let cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < all).collect();
            let config = stages(cuts.len() + 1, SCHEDULES[schedule]).with_cuts(cuts);
            let task = Classify { chains, ..case.task.clone() };
            let way = Way { plan: plan.filter(|plan| plan.blocks() == all), ..Way::stages(config) };
            (Case { task, ..case.named("any division") }, way)
        },
    )
}

#[test]
fn any_division_keeps_the_bits() {
    // Before the first case is drawn: models are made for it, which another test would measure.
    let _turn = turn();
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    let kept = TestRunner::new(config).run(&cases(), |(case, way)| {
        case.check(&way, &case.run(&Way { plan: way.plan.clone(), ..Way::default() }));
        Ok(())
    });
    kept.unwrap_or_else(|failure| panic!("{failure}"));
}
