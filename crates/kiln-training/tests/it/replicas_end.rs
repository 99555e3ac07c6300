//! Replicas that fail for good, stop, or have no part of a batch: the others end with an error that names them, or take the step without them.

use std::fs;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use burn::tensor::{Device, Tensor};
use kiln_data::{BatchPlan, Error as DataError, Loader, LoaderConfig, Replica, TrainTest};
use kiln_parallel::Communicator;
use kiln_training::{
    Checkpoints, Error, Event, Finish, Intervals, Metric, Metrics, OptimizerConfig, Pass, Task, TrainerBuilder,
};

use crate::case::{Case, Make, Parts, Samples, Way, on_all, on_replicas};
use crate::support::{Net, Settings, Snapshot, builder, noted, settings, temporary, told, turn};

/// Samples of a micro-batch.
const MICRO: usize = 2;
const REPLICAS: usize = 3;
const SIZE: usize = MICRO * REPLICAS;
const STEPS: u64 = 8; // of epochs of 3

/// The replica that fails, and the step in which it does.
const VICTIM: usize = 1;
const AT: u64 = 5;

/// The victim's action in its fifth step, or instead of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// It continues normally.
    Goes,
    /// Its loss does not depend on the parameters.
    NoGradients,
    /// Its task panics.
    Panics,
    /// Its data fails.
    NoData,
    /// Its data panics.
    DataPanics,
    /// Its observer panics.
    ObserverPanics,
    /// Its observer asks to stop.
    ObserverStops,
    /// It cannot evaluate the model.
    NotEvaluated,
}

use How::*;

/// A net whose task counts its losses, and fails in one.
struct Failing {
    how: How,
    losses: AtomicUsize,
}

impl Task for Failing {
    type Model = Net;
    type Batch = Vec<usize>;

    fn loss(&self, pass: &Pass<'_, Net>, batch: &Vec<usize>) -> Tensor<1> {
        let due = self.losses.fetch_add(1, Relaxed) as u64 + 1 == AT;
        match self.how {
            NoGradients if due => Tensor::zeros([1], pass.device()),
            Panics if due => panic!("the task has a bug"),
            _ => pass.model().loss(batch, pass.device()),
        }
    }

    fn metrics(&self, pass: &Pass<'_, Net>, batch: &Vec<usize>) -> Metrics {
        assert!(self.how != NotEvaluated, "no metric");
        Metrics::new().with("samples", Metric::mean(Tensor::from_floats([batch.len() as f32], pass.device()), 1))
    }
}

fn loader(
    rank: usize,
    load: impl Fn(&BatchPlan) -> Result<Vec<usize>, DataError> + Send + Sync + 'static,
) -> Loader<Vec<usize>> {
    let config = LoaderConfig::new(SIZE).with_replica(Replica::new(rank, REPLICAS).unwrap());
    Loader::new(3 * SIZE, config, load).unwrap()
}

fn a_builder(how: How, communicator: Arc<dyn Communicator>) -> TrainerBuilder<'static, Failing> {
    let settings = Settings {
        steps: STEPS,
        every: Intervals::default().with_checkpoint(2).with_evaluation(5),
        ..settings(OptimizerConfig::adamw())
    };
    let task = Failing { how, losses: AtomicUsize::new(0) };
    builder(task, |_| Net::new(&[8, 16, 16], true, 0.2), &settings).with_replicas(communicator)
}

/// How a run of a replica ended.
struct End {
    result: Result<Finish, Error>,
    step: u64,
    snapshot: Option<Snapshot>,
}

/// Trains from the newest checkpoint on; the victim does as `how` says. Threads that panic return the panic.
fn run(how: How, shards: bool, directory: &Path) -> Vec<thread::Result<End>> {
    on_replicas(REPLICAS, |communicator| {
        let rank = communicator.rank();
        // A handle that outlives the trainer: it must not be the drop of the communicator alone that tells the others.
        let _handle = communicator.clone();
        let how = if rank == VICTIM { how } else { Goes };
        let builder = a_builder(how, communicator).with_checkpoints(Checkpoints::new(directory, 2).unwrap());
        let builder = if shards { builder.with_sharded_optimizer(true) } else { builder };
        let mut trainer = builder.build(&Device::flex(), &vec![0; SIZE]).unwrap();
        trainer.resume().unwrap();
        trainer.observe(move |event| match event {
            Event::Step(report) if how == ObserverPanics && report.step == AT => panic!("the observer has a bug"),
            Event::Step(report) if how == ObserverStops && report.step == AT => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        let load = move |plan: &BatchPlan| match (how, 3 * plan.epoch + plan.index as u64 + 1 == AT) {
            (NoData, true) => Err(DataError::Format { path: "photo.jpg".into(), reason: "cut short".into() }),
            (DataPanics, true) => panic!("the loader has a bug"),
            _ => Ok(plan.ids.clone()),
        };
        let test = Loader::new(4, LoaderConfig::new(4), |plan: &BatchPlan| Ok(plan.ids.clone())).unwrap();
        let data = TrainTest { train: loader(rank, load), test };
        let result = trainer.fit(&data);
        let snapshot = if result.is_ok() { Snapshot::on_first(&trainer) } else { None };
        End { result, step: trainer.state().step, snapshot }
    })
}

#[test]
fn a_replica_that_fails_ends_all_and_the_run_goes_on_from_its_checkpoint() {
    let _turn = turn();
    let folder = temporary();
    let whole = run(Goes, false, &folder.path().join("whole"));
    let whole: Vec<End> = whole.into_iter().map(|end| end.unwrap()).collect();
    let expected = whole[0].snapshot.as_ref().unwrap();
    let cases = [
        (NoGradients, "no parameter has a gradient"),
        (Panics, "it panicked: the task has a bug"),
        (NoData, "cut short"),
        (DataPanics, "the loader has a bug"),
        (ObserverPanics, "it panicked: the observer has a bug"),
        (NotEvaluated, "it panicked: no metric"),
    ];
    for (how, reason) in cases {
        for shards in [false, true] {
            let context = format!("{how:?}, sharded: {shards}");
            let directory = folder.path().join(&context);
            let ends = run(how, shards, &directory);
            for (rank, end) in ends.into_iter().enumerate() {
                let Ok(end) = end else {
                    assert_eq!(rank, VICTIM, "{context}");
                    continue;
                };
                let text = end.result.unwrap_err().to_string();
                // The reason, and not that a replica waited for its time limit.
                if rank != VICTIM {
                    assert!(text.contains(&format!("replica {VICTIM}")) && text.contains(reason), "{context}: {text}");
                }
            }
            // All threads are joined. The run continues from its newest checkpoint.
            let again = run(Goes, shards, &directory);
            for end in again {
                let end = end.unwrap_or_else(|panic| resume_unwind(panic));
                assert_eq!((end.result.unwrap(), end.step), (Finish::Complete, STEPS), "{context}");
                if let Some(snapshot) = end.snapshot {
                    snapshot.assert_same(expected, &context);
                }
            }
        }
    }
}

#[test]
fn all_replicas_stop_at_the_step_at_which_one_is_asked_to() {
    let _turn = turn();
    for shards in [false, true] {
        let folder = temporary();
        for end in run(ObserverStops, shards, folder.path()) {
            let end = end.unwrap();
            assert_eq!((end.result.unwrap(), end.step), (Finish::Stopped, AT));
        }
        assert!(folder.path().join(format!("step-{AT:08}")).is_dir());
    }
}

#[test]
fn a_replica_that_goes_away_between_steps_is_missed_in_the_next() {
    let _turn = turn();
    let errors = on_all(REPLICAS, |communicator| {
        let rank = communicator.rank();
        let mut trainer = a_builder(Goes, communicator).build(&Device::flex(), &vec![0; SIZE]).unwrap();
        let _ = trainer.step(&vec![rank]).unwrap();
        (rank != VICTIM).then(|| trainer.step(&vec![rank]).unwrap_err().to_string())
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(error, format!("replica {VICTIM} has left: its communicator was dropped"));
    }
}

/// Errors of the first replica, which writes, and errors of data that does not fit.
#[test]
fn what_fails_on_one_replica_alone_is_told_to_all() {
    let _turn = turn();
    let folder = temporary();
    let no_directory = folder.path().join("file");
    fs::write(&no_directory, "no directory").unwrap();
    let fit = |what: &str, communicator: Arc<dyn Communicator>| {
        let rank = communicator.rank();
        let saved = if what == "save" { no_directory.clone() } else { folder.path().join(what) };
        let mut builder = a_builder(Goes, communicator);
        if what != "checkpoints" || rank != 0 {
            builder = builder.with_checkpoints(Checkpoints::new(saved, 1).unwrap());
        }
        if what == "every" && rank == 2 {
            builder = builder.with(|settings| settings.checkpoints.intervals = Intervals::default());
        }
        let mut trainer = builder.build(&Device::flex(), &vec![0; SIZE])?;
        let events = noted(&mut trainer, |event| Some(format!("{event:?}")), |_| false);
        if what == "data" && rank == VICTIM {
            // It has seen other data before.
            trainer.set_data(&loader(rank, |plan| Ok(plan.ids.clone())))?;
        }
        let short = what == "data" && rank == VICTIM || what == "batches" && rank == 0;
        let batches: Vec<Vec<usize>> = vec![vec![rank, rank + 3]; if short { 2 } else { 3 }];
        let result = trainer.fit(&batches);
        assert!(!events.borrow().iter().any(|event| event.starts_with("Saved")), "{what}");
        result
    };
    let cases = [
        ("save", 0, "cannot save checkpoint"),
        ("data", VICTIM, "expected the same data"),
        ("batches", 1, "its number of batches an epoch is 3, expected 2 as on replica 0"),
        ("every", 2, "its times of evaluations and checkpoints is"),
        ("checkpoints", 1, "its use of checkpoints is true, expected false as on replica 0"),
    ];
    for (what, failed, reason) in cases {
        let ends = on_all(REPLICAS, |communicator| fit(what, communicator));
        for (rank, end) in ends.into_iter().enumerate() {
            let error = end.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(reason), "{what}, replica {rank}: {text}");
            let own = rank == failed && matches!(error, Error::Save { .. } | Error::OtherData { .. });
            assert!(own || text.starts_with(&format!("replica {failed} failed: ")), "{what}, replica {rank}: {text}");
        }
    }
}

#[test]
fn a_trainer_that_cannot_be_built_is_told_to_all() {
    let _turn = turn();
    let errors = on_all(REPLICAS, |communicator| {
        let (rank, _handle) = (communicator.rank(), communicator.clone());
        let builder = a_builder(Goes, communicator);
        let builder = if rank == VICTIM { builder.with_clip_norm(-1.0) } else { builder };
        builder.build(&Device::flex(), &vec![0; SIZE]).err().unwrap().to_string()
    });
    for (rank, error) in errors.into_iter().enumerate() {
        assert!(error.contains("clip norm is -1"), "{error}");
        assert_eq!(error.starts_with("replica 1 has left: "), rank != VICTIM, "{error}");
    }
}

fn nothing_left(plan: &BatchPlan) -> DataError {
    DataError::NothingLeft { epoch: plan.epoch, batch: plan.index, samples: plan.ids.len() }
}

/// The samples of the whole batches of an epoch that can be read.
fn readable(plan: &BatchPlan, rank: usize) -> Result<Vec<usize>, DataError> {
    // In the second batch, the second replica has no sample that can be read; in the third none has.
    match (plan.index, rank) {
        (1, VICTIM) | (2, _) => Err(nothing_left(plan)),
        _ => Ok(plan.ids.clone()),
    }
}

/// A run of batches for all replicas.
fn whole_batches() -> Case {
    let make = Make::Chain(Parts { norms: true, ..Parts::new(1) });
    Case::new(make, OptimizerConfig::adamw(), SIZE, MICRO).steps(STEPS)
}

/// A loader that gives a replica, or a run without others, what `load` reads.
fn reading(
    rank: Option<usize>,
    load: impl Fn(&BatchPlan, usize) -> Result<Vec<usize>, DataError> + Send + Sync + 'static,
) -> Loader<Samples> {
    let config = LoaderConfig::new(SIZE);
    let config = match rank {
        Some(rank) => config.with_replica(Replica::new(rank, REPLICAS).unwrap()),
        None => config,
    };
    Loader::new(3 * SIZE, config, move |plan| {
        let of = |rank, ids: &[usize]| load(&BatchPlan { ids: ids.to_vec(), ..plan.clone() }, rank);
        match rank {
            Some(rank) => of(rank, &plan.ids).map(Samples::of),
            None => {
                let parts = plan.ids.chunks(MICRO).enumerate().map(|(rank, ids)| of(rank, ids));
                let read: Vec<usize> = parts.flatten().flatten().collect();
                if read.is_empty() { of(0, &plan.ids).map(Samples::of) } else { Ok(Samples::of(read)) }
            }
        }
    })
    .unwrap()
}

#[test]
fn a_replica_without_samples_takes_part_in_the_step_of_the_others() {
    let _turn = turn();
    let case = whole_batches();
    let run = |sharded, communicator: Option<Arc<dyn Communicator>>| {
        let rank = communicator.as_ref().map(|communicator| communicator.rank());
        let way = Way { sharded, ..Way::default() };
        let mut trainer = case.builder(&way, communicator).build(&Device::flex(), &case.batch(0)).unwrap();
        let notes = noted(&mut trainer, told, |_| false);
        assert_eq!(trainer.fit(&reading(rank, readable)).unwrap(), Finish::Complete);
        (notes.take(), Snapshot::on_first(&trainer), trainer.state().epoch)
    };
    let (expected, snapshot, epoch) = run(false, None);
    assert_eq!((expected.len() as u64, epoch), (STEPS, 3), "two steps an epoch");
    for sharded in [false, true] {
        for (notes, got, _) in on_all(REPLICAS, |communicator| run(sharded, Some(communicator))) {
            assert_eq!(notes, expected);
            if let Some(got) = got {
                got.assert_same(snapshot.as_ref().unwrap(), &format!("sharded: {sharded}"));
            }
        }
    }
}

#[test]
fn an_epoch_of_which_no_replica_reads_a_sample_ends_the_run_on_all() {
    let _turn = turn();
    let case = whole_batches();
    let ends = on_all(REPLICAS, |communicator| {
        let rank = communicator.rank();
        let mut trainer =
            case.builder(&Way::default(), Some(communicator)).build(&Device::flex(), &case.batch(0)).unwrap();
        trainer.fit(&reading(Some(rank), |plan, _| Err(nothing_left(plan)))).unwrap_err()
    });
    for error in ends {
        assert!(matches!(error, Error::NothingRead { epoch: 0, .. }), "{error}");
    }
}

#[test]
fn a_group_that_is_left_by_hand_ends_a_run_between_two_steps() {
    let _turn = turn();
    let ends = on_all(2, |communicator| {
        let (rank, handle) = (communicator.rank(), communicator.clone());
        let mut trainer = a_builder(Goes, communicator).build(&Device::flex(), &vec![0; 4]).unwrap();
        trainer.observe(move |event| {
            match event {
                Event::Step(report) if rank == 1 && report.step == 3 => handle.leave("the machine goes down"),
                _ => {}
            }
            ControlFlow::Continue(())
        });
        let batches: Vec<Vec<usize>> = vec![vec![rank], vec![rank + 2], vec![rank + 4]];
        trainer.fit(&batches).unwrap_err().to_string()
    });
    for end in ends {
        assert_eq!(end, "replica 1 has left: the machine goes down");
    }
}
