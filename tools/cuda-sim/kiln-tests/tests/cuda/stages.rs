//! Stages and replicas on two GPUs: the numbers of one GPU, a part of the model on each, and memory that runs out on one of them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use burn::tensor::{Device, Distribution, Tensor};
use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_parallel::{Communicator, Local, Nccl, Schedule};
use kiln_recovery::{Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Reclaim, Recovery, Shrink};
use kiln_training::{Batch, OptimizerConfig, ScheduleConfig, StagesConfig, StepReport, Trainer};

use crate::run::with_own_pages;
use crate::sim::{Card, with_card};
use crate::support::{Settings, Snapshot, builder, planned, settings};
use crate::tasks::{Case, Residual, Text};

const STEPS: u64 = 3;
/// Samples of a micro-batch.
const MICRO: usize = 2;
/// A replica that waits longer ends with an error.
const LIMIT: Duration = Duration::from_secs(120);
/// Relative difference allowed after three steps.
const TOLERANCE: f64 = 1e-5;
const TWO: (&str, &str) = ("DEVICES", "2");

fn gpt() -> Text {
    Text {
        samples: 4,
        config: GptConfig { vocab: 16, context: 8, layers: 4, heads: 2, width: 32, dropout: 0.0, lean: true },
    }
}

fn resnet() -> Residual {
    Residual { samples: 4, side: 8, config: ResNetConfig::resnet18(4).with_stem(Stem::Cifar).with_width(4) }
}

fn cards() -> [Device; 2] {
    [Device::cuda(0), Device::cuda(1)]
}

fn settings_of(optimizer: OptimizerConfig) -> Settings {
    let schedule = ScheduleConfig::cosine(0.01).with_floor(0.1).into();
    Settings { schedule, micro_batch: Some(MICRO), ..settings(optimizer) }
}

/// The final state of a run.
struct Ended {
    reports: Vec<StepReport>,
    snapshot: Option<Snapshot>,
    /// Bytes of live tensors on each GPU.
    live: [u64; 2],
}

impl Ended {
    /// Asserts equal steps up to rounding: burn fuses operations on each GPU into other kernels than on one GPU.
    fn assert_near(&self, expected: &Self, context: &str) {
        assert_eq!(self.reports.len(), expected.reports.len());
        for (found, expected) in self.reports.iter().zip(&expected.reports) {
            assert!((found.loss - expected.loss).abs() < TOLERANCE * expected.loss, "{context}: {found:?}");
        }
        let far = self.snapshot.as_ref().unwrap().distance(expected.snapshot.as_ref().unwrap());
        println!("{context}: {far:.1e} apart");
        assert!(far < TOLERANCE, "{context}: {far:e} apart");
    }
}

/// Bytes of live tensors.
fn live() -> [u64; 2] {
    cards().map(|card| {
        kiln_recovery::reclaim(&card);
        card.memory_pool_usage().expect("CubeCL reports its pools").bytes_in_use
    })
}

/// A trainer on the first GPU, or in stages.
fn trainer<C>(case: &C, optimizer: OptimizerConfig, stages: Option<StagesConfig>) -> Trainer<C>
where
    C: Case + Sync,
    C::Model: Sync,
    C::Batch: Sync,
{
    let init = |device: &Device| case.model(device);
    let settings = settings_of(optimizer);
    let builder = match stages {
        Some(stages) => planned(case.clone(), init, &settings).with_stages(stages),
        None => builder(case.clone(), init, &settings),
    };
    builder.build(&Device::cuda(0), &case.batch(0)).unwrap()
}

/// Takes all steps of such a trainer.
fn run<C>(case: &C, optimizer: OptimizerConfig, stages: Option<StagesConfig>) -> Ended
where
    C: Case + Sync,
    C::Model: Sync,
    C::Batch: Sync,
{
    let mut trainer = trainer(case, optimizer, stages);
    let reports = (0..STEPS).map(|step| trainer.step(&case.batch(step)).unwrap()).collect();
    Ended { reports, live: live(), snapshot: Some(Snapshot::of(&trainer)) }
}

/// Two stages on two GPUs take the steps of one GPU, in each schedule. Each GPU holds less than the single one.
fn stages_take_the_same_steps<C>(case: &C, optimizer: OptimizerConfig)
where
    C: Case + Sync,
    C::Model: Sync,
    C::Batch: Sync,
{
    let alone = run(case, optimizer, None);
    assert_eq!(alone.reports[0].micro_batches, 2);
    assert_eq!(alone.live[1], 0, "nothing is on the second card");
    for schedule in [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward] {
        let staged = run(case, optimizer, Some(StagesConfig::new(cards()).with_schedule(schedule)));
        println!("{schedule}: bytes {:?}, on one card {}", staged.live, alone.live[0]);
        staged.assert_near(&alone, &format!("{schedule}"));
        let [first, second] = staged.live;
        assert!(second > 0 && first + second < alone.live[0] * 5 / 4, "{schedule}: {:?}", staged.live);
        assert!(first.max(second) < alone.live[0] * 9 / 10, "{schedule}: {:?} of {:?}", staged.live, alone.live);
    }
}

#[test]
fn two_stages_of_a_gpt_on_two_cards() {
    // For a gradient that is 0 up to rounding, such as that of a key's bias, AdamW makes an update as large as all others.
    with_card(&[TWO], |_| stages_take_the_same_steps(&gpt(), OptimizerConfig::sgd()));
}

#[test]
fn two_stages_of_a_resnet_on_two_cards() {
    with_card(&[TWO], |_| stages_take_the_same_steps(&resnet(), OptimizerConfig::sgd()));
}

/// In the second step, one page on the second GPU is refused. Each page has a run of its own.
#[test]
fn a_lack_of_memory_on_the_second_card_is_repaired() {
    with_card(&[TWO], |card: &Card| {
        let (case, optimizer) = (gpt(), OptimizerConfig::sgd());
        let stages = || Some(StagesConfig::new(cards()));
        let undisturbed = run(&case, optimizer, stages());
        let mut failed = 0;
        for page in [1, 5, 12, 25, 40, 60] {
            let mut trainer = trainer(&case, optimizer, stages());
            let sizes = MicroBatchSearch::new(MicroBatchSearchConfig::new(MICRO)).unwrap();
            let ladder = Ladder::new().with(Reclaim { times: 1 }).with(Shrink);
            let recovery = Recovery::new(Device::cuda(0), sizes, ladder);
            trainer.set_recovery(Some(recovery.with_patience(Patience::new(Duration::ZERO))));
            let trainer = Rc::new(RefCell::new(trainer));
            let step = |step| {
                let (trainer, batch) = (trainer.clone(), case.batch(step));
                move || trainer.borrow_mut().step(&batch).unwrap()
            };
            let first = step(0)();
            let before = live(); // gives idle pages back
            assert!(before[1] > 0);
            // CubeCL frees its idle pages after a refusal and asks once more.
            card.arm(&format!("alloc@1:{page}x2:OUT_OF_MEMORY"));
            let second = with_own_pages(&Device::cuda(1), step(1));
            card.disarm();
            assert_eq!(live(), before, "page {page}: bytes are left");
            let reports = vec![first, second, step(2)()];
            let failures: Vec<usize> = reports.iter().map(|report| report.failures).collect();
            println!("page {page}: failures {failures:?}");
            assert_eq!((failures[0], failures[2]), (0, 0));
            failed += failures[1];
            let ended = Ended { reports, live: live(), snapshot: Some(Snapshot::of(&trainer.borrow())) };
            ended.assert_near(&undisturbed, &format!("page {page}"));
        }
        assert!(failed >= 4, "{failed} of the pages were refused");
    });
}

/// Replicas in threads, each on a GPU.
fn replicas<C: Case + Sync>(case: &C, optimizer: OptimizerConfig, cards: [Device; 2], shards: bool) -> Vec<Ended> {
    thread::scope(|scope| {
        let work = |communicator: Arc<dyn Communicator>, card: Device| {
            let init = |device: &Device| case.model(device);
            let rank = communicator.rank();
            let builder = builder(case.clone(), init, &settings_of(optimizer)).with_replicas(communicator);
            let builder = if shards { builder.with_sharded_optimizer(true) } else { builder };
            let part = |step| case.batch(step).slice(rank * MICRO..(rank + 1) * MICRO);
            let mut trainer = builder.build(&card.autodiff(), &part(0)).unwrap();
            let reports = (0..STEPS).map(|step| trainer.step(&part(step)).unwrap()).collect();
            Ended { reports, live: [0; 2], snapshot: Snapshot::on_first(&trainer) }
        };
        let group = Local::group(2).into_iter().map(|replica| Arc::new(replica.with_time_limit(LIMIT)));
        let threads: Vec<_> =
            group.zip(cards).map(|(replica, card)| scope.spawn(move || work(replica, card))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn two_replicas_on_two_cards_take_the_steps_of_one() {
    with_card(&[TWO], |_| {
        // Not AdamW, as for two stages of a decoder.
        let (case, optimizer) = (gpt(), OptimizerConfig::sgd());
        let alone = run(&case, optimizer, None);
        for shards in [false, true] {
            let ended = replicas(&case, optimizer, cards(), shards);
            assert!(ended[1].snapshot.is_none(), "the first replica saves for all");
            ended[0].assert_near(&alone, &format!("sharded: {shards}"));
        }
    });
}

/// The emulator has no NCCL. The test checks the devices, and that a sum without NCCL ends on both replicas.
#[test]
fn without_nccl_a_sum_ends_with_an_error_on_all_replicas() {
    with_card(&[TWO], |_| {
        let refused = Nccl::group(&[1, 1]).unwrap_err();
        assert!(refused.to_string().contains("1 twice"), "{refused}");
        let group = Nccl::group(&[0, 1]).unwrap();
        thread::scope(|scope| {
            let sum = |replica: Nccl| {
                let values = Tensor::<1>::random([16], Distribution::Default, &replica.device());
                let sum = replica.all_reduce(values).map(Tensor::into_data);
                sum.is_ok_and(|sum| sum.num_elements() == 16)
            };
            let threads: Vec<_> =
                group.into_iter().map(|replica| scope.spawn(move || sum(replica.with_time_limit(LIMIT)))).collect();
            for thread in threads {
                assert!(!thread.join().unwrap_or(false), "there is no NCCL here");
            }
        });
    });
}
