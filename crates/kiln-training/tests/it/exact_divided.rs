//! An exact run has the same bits however it is divided: in stages and among replicas.

use std::sync::Arc;

use kiln_parallel::Communicator;
use kiln_precision::Policy;
use kiln_recovery::Injector;
use kiln_training::{Batch, OptimizerConfig, Precision, Recompute, StagesConfig, TrainerBuilder};

use crate::case::{Case, Classify, SCHEDULES, on_all, stages};
use crate::exact::{cases, decoder, exact};
use crate::support::{Settings, Snapshot, Watched, device, inject, turn};

/// Decoders with and without masks, in f32 and bf16.
fn decoders() -> [Case; 2] {
    let in_bf16 = |settings| Settings { policy: Policy::new(Precision::BF16), ..settings };
    [decoder(OptimizerConfig::adamw(), 8, 0.2), decoder(OptimizerConfig::adamw(), 8, 0.0).with(in_bf16)]
}

#[test]
fn stages_change_no_bit_of_a_decoder() {
    let _turn = turn();
    let in_bf16 = |settings| Settings { policy: Policy::new(Precision::BF16), ..settings };
    let cases = [decoder(OptimizerConfig::adamw(), 8, 0.2), decoder(OptimizerConfig::adamw(), 8, 0.0).with(in_bf16)];
    for case in cases {
        let run = |micro_batch: Option<usize>, plan: Recompute, stages: Option<StagesConfig>| {
            let builder = exact(&case).with_micro_batch(micro_batch).with_recompute(plan);
            let builder = stages.into_iter().fold(builder, TrainerBuilder::with_stages);
            let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
            for step in 0..3 {
                let report = trainer.step(&case.batch(step)).unwrap();
                // Without a given one, the plan of stages cuts a batch.
                let size = micro_batch.unwrap_or_else(|| trainer.plan().map_or(8, |plan| plan.micro_batch));
                assert_eq!(report.micro_batches, 8_usize.div_ceil(size));
            }
            Snapshot::of(&trainer)
        };
        let expected = run(None, Recompute::None, None);
        for schedule in SCHEDULES {
            for (micro_batch, plan) in
                [(None, Recompute::None), (Some(1), Recompute::Every(1)), (Some(3), Recompute::None)]
            {
                let context = format!("{case:?}: {schedule:?}, micro-batches of {micro_batch:?}, {plan:?}");
                let found = run(micro_batch, plan, Some(stages(2, schedule)));
                found.assert_same(&expected, &context);
            }
        }
    }
}

/// A replica's samples of a batch of eight, in the order of the ranks, and micro-batches.
struct Dealt {
    ends: Vec<usize>,
    micro_batch: Option<usize>,
    plan: Recompute,
}

fn dealt(ends: &[usize], micro_batch: Option<usize>, plan: Recompute) -> Dealt {
    Dealt { ends: ends.to_vec(), micro_batch, plan }
}

impl Dealt {
    fn builder<'a>(&self, case: &'a Case, communicator: Arc<dyn Communicator>) -> TrainerBuilder<'a, Classify> {
        let Self { micro_batch, plan, .. } = self;
        exact(case).with_micro_batch(*micro_batch).with_recompute(plan.clone()).with_replicas(communicator)
    }

    /// Steps of a replica, on which memory runs out at some calls. Returns the snapshot of the first
    /// replica, and the most micro-batches of a step.
    fn run(&self, case: &Case, faults: impl Fn(usize) -> Option<Injector> + Sync) -> (Option<Snapshot>, usize) {
        let all = on_all(self.ends.len(), |communicator| {
            let rank = communicator.rank();
            let samples = rank.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[rank];
            let mut trainer = Watched::build_on(self.builder(case, communicator), &device(), &case.batch(0));
            let _faults = faults(rank).map(|faults| inject(&mut trainer, faults));
            let mut most = 0;
            for step in 0..3 {
                let report = trainer.step(&case.batch(step).slice(samples.clone())).unwrap();
                most = most.max(report.micro_batches);
            }
            (Snapshot::on_first(&trainer), most)
        });
        let most = all[0].1;
        (all.into_iter().find_map(|(snapshot, _)| snapshot), most)
    }
}

#[test]
fn replicas_change_no_bit_of_a_decoder() {
    let _turn = turn();
    for case in decoders() {
        let alone = dealt(&[8], None, Recompute::None).run(&case, |_| None).0.unwrap();
        for (way, micro_batches) in [
            (dealt(&[4, 8], None, Recompute::None), 2),
            (dealt(&[2, 4, 6, 8], None, Recompute::Every(1)), 4),
            (dealt(&[4, 8], Some(1), Recompute::None), 8),
            (dealt(&[4, 8], Some(3), Recompute::Every(1)), 4),
            (dealt(&[3, 5, 8], Some(2), Recompute::None), 5),
            (dealt(&[5, 5, 8], None, Recompute::None), 2),
            (dealt(&[0, 8], Some(4), Recompute::None), 2),
        ] {
            let context = format!("{case:?}: {:?} in micro-batches of {:?}", way.ends, way.micro_batch);
            let (snapshot, found) = way.run(&case, |_| None);
            assert_eq!(found, micro_batches, "{context}");
            snapshot.unwrap().assert_same(&alone, &context);
        }
    }
}

#[test]
fn a_replica_that_lacks_memory_changes_no_bit() {
    let _turn = turn();
    let case = &decoders()[0];
    let way = dealt(&[4, 8], None, Recompute::None);
    let alone = dealt(&[8], None, Recompute::None).run(case, |_| None).0.unwrap();
    let mut cuts = vec![];
    // From before the forward pass to after the update.
    for call in 1..=12 {
        for failing in 0..2 {
            let fails = |rank| (rank == failing).then(|| Injector::calls(call..=call + 2));
            let (snapshot, micro_batches) = way.run(case, fails);
            snapshot.unwrap().assert_same(&alone, &format!("call {call} on replica {failing}"));
            cuts.push(micro_batches);
        }
    }
    assert!(cuts.iter().any(|count| *count > 2), "{cuts:?}");
}

/// Without rows that are added in order, a batch of replicas is not cut.
#[test]
fn models_that_mix_samples_are_not_cut_on_replicas() {
    let _turn = turn();
    let [resnet, _] = cases();
    let (_, micro_batches) = dealt(&[4, 8], None, Recompute::None).run(&resnet, |_| None);
    assert_eq!(micro_batches, 2);
}
