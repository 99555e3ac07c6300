//! Whole runs in their directories.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test panics at the first failure")]

use std::cell::{Cell, RefCell};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use kiln_report::State;
use kiln_runs::{Error, Run, RunSummary, lock, read_metrics};
use kiln_training::{
    BatchSource, BestConfig, CountingAllocator, Epoch, Event, Finish, Goal, Local, Metric, Metrics, Pass, Recompute,
    StoreConfig, Task, Trainer, TrainerBuilder,
};
use serde_json::{Value, json};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// burn's random numbers are those of the process.
static TURN: Mutex<()> = Mutex::new(());

#[derive(Module, Debug)]
struct Net {
    layer: Linear,
}

/// Learns to return its input.
struct Same;

impl Task for Same {
    type Model = Net;
    type Batch = TensorData;

    fn loss(&self, pass: &Pass<'_, Net>, batch: &TensorData) -> Tensor<1> {
        let x: Tensor<2> = pass.input(batch);
        (pass.model().layer.forward(x.clone()) - x).square().mean()
    }

    fn metrics(&self, pass: &Pass<'_, Net>, batch: &TensorData) -> Metrics {
        Metrics::new().with("val_loss", Metric::mean(self.loss(pass, batch), 1))
    }
}

/// Batches of other numbers each.
struct Numbers(usize);

impl BatchSource for Numbers {
    type Batch = TensorData;

    fn batches(&self) -> usize {
        self.0
    }

    fn samples(&self) -> usize {
        8 * self.0
    }

    fn epoch(&self, epoch: u64, first: usize) -> Epoch<'_, TensorData> {
        let batch = move |number: usize| {
            let begin = (epoch as usize * 7 + number) as f32;
            Ok(TensorData::new((0..32).map(|at| (begin + at as f32).sin()).collect(), [8, 4]))
        };
        Box::new((first..self.0).map(batch))
    }
}

fn data(batches: usize) -> kiln_training::TrainTest<Numbers> {
    kiln_training::TrainTest { train: Numbers(batches), test: Numbers(1) }
}

fn builder() -> TrainerBuilder<'static, Same> {
    Trainer::builder(Same, |device| Net { layer: LinearConfig::new(4, 4).init(device) })
        .with_schedule(0.01)
        .with_epochs(2)
        .with_allocator(&HEAP)
}

fn built(builder: TrainerBuilder<'static, Same>) -> Trainer<Same> {
    let sample = Numbers(1).epoch(0, 0).next().unwrap().unwrap();
    builder.build(&Device::flex(), &sample).unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// The lines of the metrics without those that depend on the clock.
fn metrics(directory: &Path) -> Vec<Value> {
    read_metrics(directory).unwrap()
}

#[test]
fn a_run_leaves_its_metrics_checkpoints_and_pages() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("runs/first");
    let mut trainer = built(builder());
    let run = Run::at(&at).with_settings(&json!({"rate": 0.01, "layers": {"width": 4}})).unwrap().quiet();
    assert_eq!(run.fit(&mut trainer, &data(5)).unwrap(), Finish::Complete);

    let lines = metrics(&at);
    let steps: Vec<u64> =
        lines.iter().filter(|line| line["kind"] == "step").map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=10).collect::<Vec<_>>());
    assert_eq!(lines.iter().filter(|line| line["val_loss"].is_f64()).count(), 2);
    assert!(read(&at.join("metrics.csv")).starts_with("kind,step,epoch"));
    let events = fs::read_dir(&at).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    assert_eq!(events.filter(|name| name.starts_with("events.out.tfevents")).count(), 1);
    let report = read(&at.join("report.html"));
    assert!(
        report.contains("state finished") && report.contains("20 parameters") && report.contains("[layers]"),
        "{report}"
    );
    let memory = read(&at.join("memory.html"));
    assert!(memory.contains("first: memory of a training step"), "{memory}");

    let summary = RunSummary::read(&at).unwrap();
    assert_eq!((summary.state, summary.step, summary.total_steps()), (State::Finished, 10, Some(10)));
    assert!(summary.peak_bytes().unwrap() > 0 && summary.result("samples_per_second").unwrap() > 0.0);
    assert_eq!((summary.name.as_str(), summary.settings["layers"]["width"].as_u64()), ("first", Some(4)));
    // Another call has nothing left to do, and changes nothing.
    let before = (lines, report);
    assert_eq!(Run::at(&at).quiet().fit(&mut built(builder()), &data(5)).unwrap(), Finish::Complete);
    assert_eq!((metrics(&at), read(&at.join("report.html"))), before);
}

#[test]
fn a_run_that_was_stopped_goes_on_to_the_bits_of_one_that_was_not() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let mut trainer = built(builder());
    let _ = Run::at(&whole).quiet().fit(&mut trainer, &data(5)).unwrap();
    let weights = |trainer: &Trainer<Same>| trainer.model().layer.weight.val().into_data();
    let expected = weights(&trainer);
    for stop in [3, 7] {
        let steps = Rc::new(Cell::new(0));
        let seen = steps.clone();
        let counting = builder().with_observer(move |event| {
            if let Event::Step(report) = event {
                seen.set(report.step);
            }
            ControlFlow::Continue(())
        });
        let run = Run::at(&parts).quiet().with_interrupt(move || steps.get() >= stop);
        assert_eq!(run.fit(&mut built(counting), &data(5)).unwrap(), Finish::Stopped);
        let summary = RunSummary::read(&parts).unwrap();
        assert_eq!((summary.state, summary.step), (State::Stopped, stop));
        assert!(read(&parts.join("report.html")).contains("To go on: start the program again"));
    }
    let mut trainer = built(builder());
    assert_eq!(Run::at(&parts).quiet().fit(&mut trainer, &data(5)).unwrap(), Finish::Complete);
    assert_eq!(weights(&trainer), expected);
    assert_eq!(metrics(&parts), metrics(&whole));
    assert_eq!(RunSummary::read(&parts).unwrap().status.unwrap().sessions.len(), 3);
}

#[test]
fn an_error_stands_in_the_report_and_reaches_the_caller() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = built(builder().with_schedule(1e30));
    let error = Run::at(folder.path()).quiet().fit(&mut trainer, &data(5)).unwrap_err();
    assert!(matches!(error, Error::Training(kiln_training::Error::NotFinite { .. })), "{error}");
    assert_eq!(RunSummary::read(folder.path()).unwrap().state, State::Failed);
    assert!(read(&folder.path().join("report.html")).contains("expected a finite number"));

    // Also one in the first step, before which nothing was noted.
    let first = tempfile::tempdir().unwrap();
    let mut trainer = built(builder());
    let nan = vec![TensorData::new(vec![f32::NAN; 32], [8, 4]); 2];
    Run::at(first.path()).quiet().fit(&mut trainer, &nan).unwrap_err();
    assert_eq!(RunSummary::read(first.path()).unwrap().state, State::Failed);
    assert!(read(&first.path().join("report.html")).contains("expected a finite number"));

    // Metrics that cannot be written end the run, too: its checkpoints would be ahead of them.
    let blocked = tempfile::tempdir().unwrap();
    let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
    let (steps, csv) = (seen.clone(), blocked.path().join("metrics.csv"));
    let trainer = builder().with_observer(move |event| {
        if let Event::Step(report) = event {
            steps.borrow_mut().push(report.step);
            if report.step == 1 {
                let _ = fs::remove_file(&csv);
                fs::create_dir(&csv).unwrap(); // the first line with figures of an evaluation replaces the table
            }
        }
        ControlFlow::Continue(())
    });
    let error = Run::at(blocked.path()).quiet().fit(&mut built(trainer), &data(2)).unwrap_err();
    assert!(matches!(error, Error::File { .. }) && error.to_string().contains("metrics.csv"), "{error}");
    assert!(seen.borrow().len() < 4, "{seen:?}");
    assert_eq!(RunSummary::read(blocked.path()).unwrap().state, State::Failed);
}

#[test]
fn what_cannot_be_a_run_of_this_process_is_refused_before_a_step() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let held = lock(folder.path()).unwrap();
    let error = Run::at(folder.path()).quiet().fit(&mut built(builder()), &data(2)).unwrap_err();
    assert!(matches!(error, Error::InUse(_)) && error.to_string().contains("another process"), "{error}");
    drop(held);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Run::at(&file).quiet().fit(&mut built(builder()), &data(2)).unwrap_err();
    assert!(error.to_string().contains("cannot make"), "{error}");
    let error = Run::at(&file).with_settings(&7).err().unwrap();
    assert!(matches!(error, Error::Settings(_)), "{error}");
    let mut replicas = Local::group(2).into_iter().map(Arc::new);
    let (first, second) = (replicas.next().unwrap(), replicas.next().unwrap());
    std::thread::scope(|scope| {
        let second = scope.spawn(move || built(builder().with_replicas(second)).replicas());
        let mut trainer = built(builder().with_replicas(first));
        assert_eq!(second.join().unwrap(), 2);
        let error = Run::at(folder.path().join("run")).quiet().fit(&mut trainer, &data(2)).unwrap_err();
        assert!(matches!(error, Error::Replicas(2)) && !folder.path().join("run").exists(), "{error}");
    });
}

#[test]
fn observers_see_the_model_and_a_run_keeps_the_callers() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let norms: Rc<RefCell<Vec<f32>>> = Rc::default();
    let seen = norms.clone();
    let builder = builder().with_model_observer(move |event, model| {
        if matches!(event, Event::Evaluated(_)) {
            seen.borrow_mut().push(model.layer.weight.val().square().sum().into_scalar());
        }
        ControlFlow::Continue(())
    });
    let mut trainer = built(builder.with(|settings| {
        settings.checkpoints.best = Some(BestConfig::new("val_loss", Goal::Lowest));
    }));
    let _ = Run::at(folder.path()).quiet().fit(&mut trainer, &data(3)).unwrap();
    let norms = norms.borrow();
    let last: f32 = trainer.model().layer.weight.val().square().sum().into_scalar();
    assert!(norms.len() == 2 && norms[0] != norms[1] && norms[1] == last, "{norms:?}");
    assert!(folder.path().join("checkpoints/best").exists());
}

#[derive(Module, Debug)]
struct Blocks {
    blocks: Vec<Linear>,
}

/// [`Same`] with blocks that can be in a store.
struct SameInBlocks;

impl Task for SameInBlocks {
    type Model = Blocks;
    type Batch = TensorData;

    fn loss(&self, pass: &Pass<'_, Blocks>, batch: &TensorData) -> Tensor<1> {
        let x: Tensor<2> = pass.input(batch);
        (pass.chain(&pass.model().blocks, x.clone(), |block, x| block.forward(x)) - x).square().mean()
    }

    fn metrics(&self, pass: &Pass<'_, Blocks>, batch: &TensorData) -> Metrics {
        Metrics::new().with("val_loss", Metric::mean(self.loss(pass, batch), 1))
    }
}

#[test]
fn a_run_in_a_store_goes_on_and_leaves_the_lines_of_one_in_memory() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let fit = |at: &str, store: Option<&str>, stop: u64| {
        let (steps, sample) = (Rc::new(Cell::new(0)), Numbers(1).epoch(0, 0).next().unwrap().unwrap());
        let seen = steps.clone();
        let blocks = |device: &Device| (0..3).map(|_| LinearConfig::new(4, 4).init(device)).collect();
        let builder = Trainer::builder(SameInBlocks, move |device| Blocks { blocks: blocks(device) })
            .with_schedule(0.01)
            .with_epochs(2)
            .with(|settings| {
                settings.memory.store = store.map(|name| StoreConfig::Directory(folder.path().join(name)));
                settings.memory.recompute = if store.is_some() { Recompute::Stream } else { Recompute::None };
            })
            .with_observer(move |event| {
                if let Event::Step(report) = event {
                    seen.set(report.step);
                }
                ControlFlow::Continue(())
            });
        let mut trainer = builder.build(&Device::flex(), &sample).unwrap();
        assert_eq!(trainer.streamed().is_some(), store.is_some());
        let run = Run::at(folder.path().join(at)).quiet().with_interrupt(move || steps.get() >= stop);
        run.fit(&mut trainer, &data(5)).unwrap()
    };
    assert_eq!(fit("memory", None, u64::MAX), Finish::Complete);
    for (stop, finish) in [(2, Finish::Stopped), (5, Finish::Stopped), (u64::MAX, Finish::Complete)] {
        assert_eq!(fit("stored", Some("store"), stop), finish);
    }
    let lines = metrics(&folder.path().join("stored"));
    assert_eq!(lines, metrics(&folder.path().join("memory")));
    // A run that has ended takes no step, and is not evaluated again.
    assert_eq!(fit("stored", Some("store"), u64::MAX), Finish::Complete);
    assert_eq!(metrics(&folder.path().join("stored")), lines);
}
