//! How runs end and are evaluated: trained steps are kept, and an evaluation takes no more memory than training.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use burn::tensor::Tensor;
use kiln_data::{BatchPlan, Error as DataError, Loader, LoaderConfig, TrainTest};
use kiln_recovery::{Failure, Injector, Kind, Ladder};
use kiln_training::{
    BatchSource, Boundary, Checkpoints, Epoch, Error, Intervals, Metric, Metrics, OptimizerConfig, Pass, Task, Trainer,
    evaluate,
};

use crate::support::{
    Net, Settings, Snapshot, Watched, beside, device, inject, noted, recovery, settings, temporary, told, trainer, turn,
};

const SAMPLES: usize = 12;
const SIZE: usize = 4;
const STEPS: u64 = 8; // of epochs of 3

/// A net that is evaluated on the numbers of its samples, with memory for some of them at once.
#[derive(Clone)]
struct Measured {
    room: Arc<AtomicUsize>,
    /// Samples at once, of every call that had room.
    seen: Arc<Mutex<Vec<usize>>>,
}

impl Measured {
    fn with_room(room: usize) -> Self {
        Self { room: Arc::new(AtomicUsize::new(room)), seen: Arc::default() }
    }
}

impl Task for Measured {
    type Model = Net;
    type Batch = Vec<usize>;

    fn loss(&self, pass: &Pass<'_, Net>, batch: &Vec<usize>) -> Tensor<1> {
        pass.model().loss(batch, pass.device())
    }

    fn metrics(&self, pass: &Pass<'_, Net>, batch: &Vec<usize>) -> Metrics {
        let room = self.room.load(Relaxed);
        assert!(batch.len() <= room, "out of device memory allocating {} bytes", 64 * batch.len());
        self.seen.lock().unwrap().push(batch.len());
        let sum = Tensor::from_floats([batch.iter().map(|id| *id as f32).sum::<f32>()], pass.device());
        Metrics::new().with("mean", Metric::mean(sum, batch.len()))
    }
}

fn loader(
    batch: usize,
    load: impl Fn(&BatchPlan) -> Result<Vec<usize>, DataError> + Send + Sync + 'static,
) -> Loader<Vec<usize>> {
    Loader::new(SAMPLES, LoaderConfig::new(batch), load).unwrap()
}

fn data() -> TrainTest<Loader<Vec<usize>>> {
    let ids = |plan: &BatchPlan| Ok(plan.ids.clone());
    TrainTest { train: loader(SIZE, ids), test: loader(SAMPLES, ids) }
}

fn run_settings() -> Settings {
    Settings { steps: STEPS, every: Intervals::default().with_evaluation(2), ..settings(OptimizerConfig::adamw()) }
}

/// A trainer with room for any evaluation.
fn roomy(net: &Net) -> Watched<Measured> {
    trainer(net, Measured::with_room(usize::MAX), &run_settings())
}

/// Steps and evaluations that a run reports, and the error that it ends with.
fn run(
    trainer: &mut Trainer<Measured>,
    data: &TrainTest<Loader<Vec<usize>>>,
    checkpoints: &Checkpoints,
) -> (Vec<String>, Option<Error>) {
    let events = noted(trainer, told, |_| false);
    trainer.set_checkpoints(checkpoints.clone());
    let ended = trainer.fit(data);
    (events.take(), ended.err())
}

/// Returns two batches although it announces three.
struct Short;

impl BatchSource for Short {
    type Batch = Vec<usize>;

    fn batches(&self) -> usize {
        3
    }

    fn samples(&self) -> usize {
        SAMPLES
    }

    fn epoch(&self, _: u64, first: usize) -> Epoch<'_, Vec<usize>> {
        Box::new((first..2).map(|at| Ok((at * SIZE..(at + 1) * SIZE).collect())))
    }
}

#[test]
fn data_with_no_batches_or_fewer_than_it_says_ends_the_run() {
    let _turn = beside();
    let net = Net::new(&[8, 16], false, 0.0);
    let none = roomy(&net).fit(&Vec::<Vec<usize>>::new()).unwrap_err();
    assert!(matches!(none, Error::InvalidSetting { .. }), "{none}");
    let mut trainer = roomy(&net);
    let short = trainer.fit(&Short).unwrap_err();
    assert!(matches!(short, Error::ShortEpoch { epoch: 0, batches: 2, expected: 3 }), "{short}");
    assert_eq!(trainer.state().step, 2);
}

#[test]
fn measuring_takes_no_more_samples_at_once_than_a_step_and_halves_when_memory_runs_out() {
    let _turn = beside();
    let net = Net::new(&[8, 16], false, 0.0);
    let task = Measured::with_room(usize::MAX);
    let figures = |task: &Measured| evaluate(task, &net, &data().test, &device());
    assert_eq!(figures(&task).unwrap(), [("mean", 5.5)]);
    assert_eq!(*task.seen.lock().unwrap(), [12]);

    let task = Measured::with_room(4);
    assert_eq!(figures(&task).unwrap(), [("mean", 5.5)]);
    assert_eq!(*task.seen.lock().unwrap(), [3, 3, 3, 3], "12, 6, 3");
    let task = Measured::with_room(0);
    let error = figures(&task).unwrap_err();
    assert!(matches!(&error, Error::Memory(failure) if failure.kind() == Kind::OutOfMemory), "{error:?}");

    // Two ways to say how large a micro-batch is.
    for recovers in [false, true] {
        let settings = Settings { micro_batch: (!recovers).then_some(5), ..run_settings() };
        let task = Measured::with_room(usize::MAX);
        let mut trainer = trainer(&net, task.clone(), &settings);
        if recovers {
            trainer.set_recovery(Some(recovery(SAMPLES, 5, Ladder::standard())));
        }
        let found = trainer.evaluate(&data().test).unwrap();
        assert_eq!(found.metrics, [("mean", 5.5)]);
        assert_eq!(*task.seen.lock().unwrap(), [5, 5, 2]);
    }
}

#[test]
fn a_run_that_ends_with_an_error_keeps_what_was_trained_and_reports_the_rest_when_it_goes_on() {
    let _turn = turn();
    let net = Net::new(&[8, 16], true, 0.2);
    let folder = temporary();
    let mut whole = roomy(&net);
    let checkpoints = Checkpoints::new(folder.path().join("whole"), 9).unwrap();
    let (expected, error) = run(&mut whole, &data(), &checkpoints);
    assert!(error.is_none(), "{error:?}");

    // What fails: measuring after a step, the batch of a step in every way.
    for (name, step) in (1..=STEPS).flat_map(|step| [("measure", step), ("step", step)]) {
        let measured = step % 2 == 0 || step % 3 == 0;
        if name == "measure" && !measured || name == "step" && step == 1 {
            continue;
        }
        let checkpoints = Checkpoints::new(folder.path().join(format!("{name}-{step}")), 9).unwrap();
        let task = Measured::with_room(usize::MAX);
        let mut first = trainer(&net, task.clone(), &run_settings());
        first.set_recovery(Some(recovery(SIZE, SIZE, Ladder::standard())));
        let (room, probed) = (task.room.clone(), AtomicUsize::new(0));
        first.watch(move |boundary| {
            let under_way = 1 + probed.fetch_add(usize::from(boundary == Boundary::Probe), Relaxed) as u64;
            if name == "measure" && boundary == Boundary::Probe && under_way == step {
                room.store(0, Relaxed);
            }
            match name == "step" && boundary == Boundary::Forward && under_way >= step {
                true => Err(Failure::new(Kind::OutOfMemory, "somebody else has all of it")),
                false => Ok(()),
            }
        });
        let (mut events, error) = run(&mut first, &data(), &checkpoints);
        let error = error.unwrap();
        match name {
            "measure" => assert!(matches!(error, Error::Memory(_)), "{name} {step}: {error:?}"),
            _ => assert!(matches!(error, Error::Exhausted { step: at, .. } if at == step), "{name} {step}: {error:?}"),
        }
        let mut second = roomy(&net);
        second.set_checkpoints(checkpoints.clone());
        let from = second.resume().unwrap().unwrap();
        let kept = step - u64::from(name == "step");
        assert!(from.ends_with(format!("step-{kept:08}")), "{name} {step}: {}", from.display());
        events.extend(run(&mut second, &data(), &checkpoints).0);
        assert_eq!(events, expected, "{name} {step}");
        Snapshot::of(&second).assert_same(&Snapshot::of(&whole), name);
    }
}

#[test]
fn a_run_of_which_no_sample_can_be_read_ends() {
    let _turn = beside();
    let gone = Arc::new(AtomicBool::new(false));
    let shared = gone.clone();
    let load = move |plan: &BatchPlan| match shared.load(Relaxed) {
        false => Ok(plan.ids.clone()),
        true => Err(DataError::NothingLeft { epoch: plan.epoch, batch: plan.index, samples: plan.ids.len() }),
    };
    let data = TrainTest { train: loader(SIZE, load), test: data().test };
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
    let net = Net::new(&[8, 16], false, 0.0);
    let mut trainer = roomy(&net);
    // The disk goes away while the second epoch is trained.
    let steps = AtomicUsize::new(0);
    let now = gone.clone();
    trainer.watch(move |boundary| {
        let taken = steps.fetch_add(usize::from(boundary == Boundary::Probe), Relaxed);
        if boundary == Boundary::Probe && taken == 4 {
            now.store(true, Relaxed);
        }
        Ok(())
    });
    let (_, error) = run(&mut trainer, &data, &checkpoints);
    let error = error.unwrap();
    assert!(matches!(error, Error::NothingRead { epoch: 2 | 3, .. }), "{error:?}");
    let kept = trainer.state().step;
    assert!((5..=6).contains(&kept), "{kept}: a batch may have been loaded ahead");
    // It is there again, and the epochs that were not read are trained.
    gone.store(false, Relaxed);
    let mut second = roomy(&Net::new(&[8, 16], false, 0.0));
    second.set_checkpoints(checkpoints.clone());
    assert!(second.resume().unwrap().is_some());
    let (_, error) = run(&mut second, &data, &checkpoints);
    assert!(error.is_none() && second.state().step == STEPS, "{error:?}");
}

#[test]
fn a_checkpoint_of_the_same_step_is_replaced_without_a_moment_without_one() {
    let _turn = beside();
    let net = Net::new(&[8, 16], false, 0.0);
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let mut first = roomy(&net);
    let _ = first.step(&vec![1, 2, 3]).unwrap();
    let path = first.save_to(&checkpoints).unwrap();
    let old = path.with_extension("old");
    for _ in 0..2 {
        assert_eq!(first.save_to(&checkpoints).unwrap(), path);
        assert_eq!(checkpoints.list().unwrap(), std::slice::from_ref(&path));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    // Killed before the new one was in its place.
    fs::rename(&path, &old).unwrap();
    let mut second = roomy(&net);
    second.set_checkpoints(checkpoints.clone());
    assert_eq!(second.resume().unwrap(), Some(old.clone()));
    Snapshot::of(&second).assert_same(&Snapshot::of(&first), "from what was set aside");
    // Killed before the old one was removed.
    first.save_to(&checkpoints).unwrap();
    fs::create_dir(&old).unwrap();
    assert_eq!(checkpoints.list().unwrap(), std::slice::from_ref(&path));
    first.save_to(&checkpoints).unwrap();
    assert!(!old.exists() && path.exists());
}

#[test]
fn time_that_went_into_failed_updates_is_reported() {
    let _turn = beside();
    let mut trainer = roomy(&Net::new(&[8, 16], false, 0.0));
    inject(&mut trainer, Injector::calls([1]).only_at(Boundary::Update.name()));
    let report = trainer.step(&vec![1, 2, 3]).unwrap();
    assert_eq!(report.failures, 1);
    assert!(report.lost_seconds > 0.0, "{report:?}");
}
