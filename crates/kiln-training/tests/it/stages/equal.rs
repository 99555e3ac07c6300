//! A run in stages has the bits of a run without stages, whatever the model, the cuts and the schedule.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use burn::tensor::Tensor;
use kiln_checkpointing::{Mode, Plan, PlanSegment};
use kiln_parallel::{Communicator, Local, Schedule};
use kiln_precision::{Policy, Precision, ScalerConfig, Scaling};
use kiln_training::{Checkpoints, Error, OptimizerConfig, StagesConfig};
use proptest::prelude::*;

use super::model::{Case, Classify, Outcome, Parts, SCHEDULES, Samples, Shortcut, stages};
use crate::support::{Settings, Snapshot, numbers, settings, turn};

/// Compares a case in all schedules and two numbers of stages with the run without.
fn check_all(case: &Case, name: &str) -> Outcome {
    let expected = case.run(None);
    for count in [2, 3] {
        for schedule in SCHEDULES {
            case.check(&expected, stages(count, schedule), name);
        }
    }
    expected
}

#[test]
fn any_number_of_stages_and_micro_batches_in_any_schedule() {
    let _turn = turn();
    let mut clipped = 0;
    // Sizes whose last micro-batch is smaller, but for the first.
    for (size, micro_batch) in [(3, 3), (5, 3), (5, 2), (7, 2), (9, 2), (11, 2)] {
        let case = Case::new(5, size, micro_batch);
        let (reports, expected) = case.reports(None);
        assert_eq!(reports[0].micro_batches, size.div_ceil(micro_batch));
        clipped += reports.iter().filter(|report| report.gradient_norm.unwrap() > 1.0).count();
        let expected = (reports.iter().map(numbers).collect(), expected);
        for count in 1..=4 {
            for schedule in SCHEDULES {
                case.check(&expected, stages(count, schedule), &format!("{size} in {micro_batch}"));
            }
        }
    }
    assert!(clipped > 0, "no gradient is clipped");
}

#[test]
fn checkpoint_plans_keep_the_bits() {
    let _turn = turn();
    let plain = Case::new(5, 7, 2);
    let recompute = |blocks| PlanSegment { blocks, mode: Mode::Recompute };
    // The second segment crosses the end of a stage, wherever two stages meet.
    let crossing = Plan::try_from(vec![recompute(0..1), recompute(1..4), recompute(4..5)]).unwrap();
    let expected = plain.run(None);
    for plan in [Plan::every(5, 1).unwrap(), crossing, Plan::every(5, 5).unwrap()] {
        let case = Case { plan: Some(plan.clone()), ..plain.clone() };
        let found = check_all(&case, &plan.to_string());
        assert_eq!(found.0, expected.0, "{plan}");
        found.1.assert_same(&expected.1, &plan.to_string());
        case.check(&expected, stages(2, Schedule::GPipe).with_cuts(vec![2]), "a cut in a segment");
    }
}

#[test]
fn sixteen_bits_keep_the_bits() {
    let _turn = turn();
    let plain = Case::new(4, 7, 2);
    let policy = |precision| Policy::new(precision).keep_norms();
    let bf16 = Settings { policy: policy(Precision::BF16), ..plain.settings.clone() };
    check_all(&Case { settings: bf16, ..plain.clone() }, "bf16");
    let scaler =
        ScalerConfig { initial: 2f64.powi(28), backoff: 2f64.powi(-14), interval: 2, ..ScalerConfig::default() };
    let f16 = Settings {
        policy: policy(Precision::F16),
        scaling: Some(Scaling::Dynamic(scaler)),
        micro_batch: Some(2),
        ..settings(OptimizerConfig::sgd())
    };
    for plan in [None, Some(Plan::every(4, 1).unwrap())] {
        let case = Case { settings: f16.clone(), steps: 5, plan, ..plain.clone() };
        let (reports, _) = case.reports(Some(stages(3, Schedule::OneForwardOneBackward)));
        assert!(reports[0].skipped && !reports[4].skipped, "{reports:?}");
        check_all(&case, "f16");
    }
}

#[test]
fn micro_batches_without_a_loss_are_left_out() {
    let _turn = turn();
    // Of 9 samples in micro-batches of 2: one micro-batch without a loss, one with half of it.
    let case = Case { ignored: |id| matches!(id % 9, 2 | 3 | 5), ..Case::new(4, 9, 2) };
    let (reports, _) = case.reports(None);
    assert_eq!(reports[0].micro_batches, 4);
    check_all(&case, "tokens");
    // A batch without a loss is refused in any case.
    let case = Case { ignored: |_| true, ..case };
    for stages in [None, Some(stages(2, Schedule::GPipe))] {
        let error = case.trainer(stages).step(&case.batch(0)).unwrap_err();
        assert!(matches!(error, Error::NothingToLearn { step: 1 }), "{error}");
    }
}

#[test]
fn frozen_stages_keep_the_bits() {
    let _turn = turn();
    let plain = Case::new(6, 7, 2);
    let parts = Parts { tied: false, ..Parts::new(6) };
    for (frozen_first, frozen) in [(false, 2..4), (true, 0..2), (true, 0..4), (false, 4..6), (true, 0..6)] {
        let name = format!("{frozen_first} {frozen:?}");
        let case = Case { parts: Parts { frozen_first, frozen, ..parts.clone() }, ..plain.clone() };
        let expected = check_all(&case, &name);
        for schedule in SCHEDULES {
            case.check(&expected, stages(3, schedule).with_cuts(vec![2, 4]), &name);
        }
    }
}

#[test]
fn several_chains_and_short_ones_keep_the_bits() {
    let _turn = turn();
    let plain = Case::new(6, 7, 2);
    let chains = |chains: &[&[usize]]| {
        let chains = chains.iter().map(|blocks| blocks.to_vec()).collect();
        Case { task: Classify { chains, ..plain.task.clone() }, ..plain.clone() }
    };
    // What is between two chains counts as a block: the first pass has 7, the second 9, the third 3.
    for (case, blocks) in [
        (chains(&[&[0, 1, 2], &[3, 4, 5]]), 7),
        (chains(&[&[0], &[1], &[2, 3], &[4, 5]]), 9),
        (chains(&[&[2], &[4]]), 3),
        (chains(&[&[0, 1, 2, 3, 4]]), 5),
    ] {
        let name = format!("{:?}", case.task.chains);
        let expected = check_all(&case, &name);
        for cut in 1..blocks {
            let context = format!("{name} cut at {cut}");
            case.check(&expected, stages(2, Schedule::OneForwardOneBackward).with_cuts(vec![cut]), &context);
        }
        let every: Vec<usize> = (1..blocks).collect();
        case.check(&expected, stages(blocks, Schedule::GPipe).with_cuts(every), &name);
        // More stages than blocks, and cuts that are none.
        for refused in [stages(blocks + 1, Schedule::GPipe), stages(2, Schedule::GPipe).with_cuts(vec![blocks])] {
            assert!(matches!(
                case.builder(Some(refused)).build(&crate::support::device(), &case.batch(0)),
                Err(Error::Parallel(_))
            ));
        }
    }
    // One block is one stage.
    let one = chains(&[&[3]]);
    one.check(&one.run(None), stages(1, Schedule::OneForwardOneBackward), "one block");
    // A chain without blocks between others.
    let empty = chains(&[&[0, 1], &[], &[2, 3]]);
    check_all(&empty, "an empty chain");
}

#[test]
fn a_block_that_several_stages_run_keeps_the_bits() {
    let _turn = turn();
    let plain = Case::new(3, 7, 2);
    let parts = Parts { norms: false, ..plain.parts.clone() };
    let task = Classify { chains: vec![vec![0, 1, 0, 2, 0]], ..plain.task.clone() };
    let case = Case { parts, task, ..plain };
    let expected = case.run(None);
    for schedule in SCHEDULES {
        case.check(&expected, stages(3, schedule).with_cuts(vec![2, 4]), "a shared block");
        case.check(&expected, stages(5, schedule).with_cuts(vec![1, 2, 3, 4]), "a shared block");
    }
}

#[test]
fn statistics_of_zeros_are_statistics() {
    let _turn = turn();
    let plain = Case::new(4, 7, 2);
    let case = Case { parts: Parts { zeros: true, ..plain.parts.clone() }, steps: 4, ..plain };
    check_all(&case, "zeros");
}

#[test]
fn a_tensor_reaches_a_later_stage_as_a_part_of_the_chains_value() {
    let _turn = turn();
    let plain = Case::new(4, 7, 2);
    for shortcut in [Shortcut::Carried, Shortcut::Detached] {
        let case = Case { task: Classify { shortcut, ..plain.task.clone() }, ..plain.clone() };
        check_all(&case, &format!("{shortcut:?}"));
    }
}

/// Masks are drawn for each stage. They differ from those without stages, but are equal in every schedule and every run.
#[test]
fn dropout_in_stages_repeats_in_every_schedule() {
    let _turn = turn();
    let plain = Case::new(4, 7, 2);
    for plan in [None, Some(Plan::every(4, 1).unwrap())] {
        let case = Case { parts: Parts { dropout: 0.3, ..plain.parts.clone() }, plan, ..plain.clone() };
        let without = case.run(None);
        case.check(&without, stages(1, Schedule::GPipe), "one stage");
        for count in [2, 3] {
            let expected = case.run(Some(stages(count, Schedule::Sequential)));
            assert_ne!(expected.0, without.0, "{count} stages have masks of their own");
            for schedule in SCHEDULES {
                case.check(&expected, stages(count, schedule), "dropout");
            }
        }
    }
}

#[test]
fn replicas_may_have_stages() {
    let _turn = turn();
    let run = |case: &Case, config: Option<StagesConfig>, shards: bool| -> Vec<(Vec<String>, Option<Snapshot>)> {
        thread::scope(|scope| {
            let replicas: Vec<_> = Local::group(2)
                .into_iter()
                .enumerate()
                .map(|(rank, replica)| {
                    let (case, config) = (case.clone(), config.clone());
                    scope.spawn(move || {
                        let builder = case.builder(config).with_replicas(Arc::new(replica));
                        let builder = if shards { builder.with_sharded_optimizer(true) } else { builder };
                        let mut trainer = builder.build(&crate::support::device(), &case.batch(0)).unwrap();
                        let reports = (0..case.steps).map(|step| {
                            let batch =
                                Samples { ignored: case.ignored, ..Samples::of(2 * step + rank as u64, case.size) };
                            numbers(&trainer.step(&batch).unwrap())
                        });
                        let reports = reports.collect();
                        // The first replica alone writes, and the others bring their part of the optimizer.
                        let snapshot = match rank {
                            0 => Some(Snapshot::of(&trainer)),
                            _ => {
                                let folder = tempfile::tempdir().unwrap();
                                trainer.save_to(&Checkpoints::new(folder.path(), 1).unwrap()).unwrap();
                                None
                            }
                        };
                        (reports, snapshot)
                    })
                })
                .collect();
            replicas.into_iter().map(|replica| replica.join().unwrap()).collect()
        })
    };
    let case = Case::new(4, 6, 2);
    for shards in [false, true] {
        let expected = run(&case, None, shards);
        for (count, schedule) in [(2, Schedule::OneForwardOneBackward), (3, Schedule::GPipe)] {
            let found = run(&case, Some(stages(count, schedule)), shards);
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.0, expected.0);
                if let (Some(found), Some(expected)) = (&found.1, &expected.1) {
                    found.assert_same(expected, &format!("{count} stages, {schedule}, shards: {shards}"));
                }
            }
        }
    }
    // One micro-batch on each replica is a run of one on the whole batch in two.
    let whole = Case::new(4, 6, 3);
    let (reports, expected) = whole.run(None);
    for (found, snapshot) in run(&Case { size: 3, ..whole.clone() }, Some(stages(2, Schedule::GPipe)), false) {
        assert_eq!(found, reports);
        if let Some(snapshot) = snapshot {
            snapshot.assert_same(&expected, "two replicas");
        }
    }
}

/// Counts the messages that a replica exchanges with the others.
#[derive(Debug)]
struct Counted(Local, Arc<AtomicUsize>);

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
    let case = Case::new(4, 6, 2);
    let messages = |config: Option<StagesConfig>| -> Vec<usize> {
        thread::scope(|scope| {
            let each = |(rank, replica): (usize, Local)| {
                let (case, config) = (case.clone(), config.clone());
                scope.spawn(move || {
                    let count = Arc::new(AtomicUsize::new(0));
                    let builder = case.builder(config).with_replicas(Arc::new(Counted(replica, count.clone())));
                    let mut trainer = builder.build(&crate::support::device(), &case.batch(0)).unwrap();
                    let before = count.load(Relaxed);
                    let batch = Samples { ignored: case.ignored, ..Samples::of(rank as u64, case.size) };
                    let _ = trainer.step(&batch).unwrap();
                    count.load(Relaxed) - before
                })
            };
            let replicas: Vec<_> = Local::group(2).into_iter().enumerate().map(each).collect();
            replicas.into_iter().map(|replica| replica.join().unwrap()).collect()
        })
    };
    assert_eq!(messages(Some(stages(2, Schedule::GPipe))), messages(None));
}

/// Any division of any model under any schedule.
fn cases() -> impl Strategy<Value = (Case, StagesConfig)> {
    let sizes = (3..10usize, 1..5usize);
    let parts = (any::<bool>(), any::<bool>(), any::<bool>(), (0..7usize, 0..7usize));
    let plan = prop::option::of(prop::collection::vec((1..4usize, any::<bool>()), 7));
    let two_chains = (any::<bool>(), 1..6usize);
    (2..7usize, sizes, parts, plan, two_chains, prop::collection::btree_set(1..7usize, 0..4), 0..3usize).prop_map(
        |(blocks, (size, micro_batch), (norms, tied, frozen_first, frozen), plan, (two, at), cuts, schedule)| {
            let plain = Case::new(blocks, size, micro_batch);
            let frozen = frozen.0.min(frozen.1)..frozen.0.max(frozen.1);
            // Something must learn.
            let frozen_first = frozen_first && norms;
            let parts = Parts { norms, tied, frozen_first, frozen, ..plain.parts.clone() };
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
            let task = Classify { chains, ..plain.task.clone() };
            (Case { parts, task, plan: plan.filter(|plan| plan.blocks() == all), steps: 2, ..plain }, config)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_division_keeps_the_bits((case, config) in cases()) {
        let _turn = turn();
        let expected = case.run(None);
        case.check(&expected, config, &format!("{case:?}"));
    }
}
