//! A run that was interrupted continues as if it had not been, and a damaged checkpoint is not used.

use std::cell::{Cell, RefCell};
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use kiln_data::{BatchPlan, Error as DataError, Loader, LoaderConfig, Order, TrainTest, sample_rng};
use kiln_training::{
    Batch, Checkpoints, Error, Event, Finish, Intervals, Metric, Metrics, OptimizerConfig, Pass, ScheduleConfig, Task,
    Trainer, top_k_correct,
};
use rand::RngExt;

use crate::support::{self, Settings, builder, turn};

/// A model with all kinds of state: weights, running statistics, dropout.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: BatchNorm,
    drop: Dropout,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(8, 16).init(device),
            norm: BatchNormConfig::new(16).init(device),
            drop: DropoutConfig::new(0.3).init(),
            last: LinearConfig::new(16, 4).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.last.forward(self.drop.forward(relu(self.norm.forward(self.first.forward(x)))))
    }
}

struct Points {
    inputs: Vec<f32>,
    targets: Vec<i64>,
}

impl Points {
    /// Which of four directions a noisy point lies in.
    fn load(plan: &BatchPlan) -> Result<Self, DataError> {
        let (mut inputs, mut targets) = (vec![], vec![]);
        for id in &plan.ids {
            let class = id % 4;
            let mut rng = sample_rng(1, plan.epoch, *id as u64);
            inputs.extend((0..8).map(|i| if i == class { 1.0 } else { 0.0 } + rng.random_range(-0.8f32..0.8)));
            targets.push(class as i64);
        }
        Ok(Self { inputs, targets })
    }

    fn tensors(&self, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let n = self.targets.len();
        let inputs = TensorData::new(self.inputs.clone(), [n, 8]);
        (Tensor::from_data(inputs, device), Tensor::from_data(TensorData::new(self.targets.clone(), [n]), device))
    }
}

impl Batch for Points {
    fn len(&self) -> usize {
        self.targets.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        let inputs = self.inputs[8 * samples.start..8 * samples.end].to_vec();
        Self { inputs, targets: self.targets[samples].to_vec() }
    }

    fn host_bytes(&self) -> u64 {
        (4 * self.inputs.len() + 8 * self.targets.len()) as u64
    }
}

/// Changes the loss, to let a step fail.
type Then = fn(Tensor<1>) -> Tensor<1>;

#[derive(Clone)]
struct Classify {
    then: Rc<Cell<Then>>,
}

impl Classify {
    fn new() -> Self {
        Self { then: Rc::new(Cell::new(|loss| loss)) }
    }
}

impl Task for Classify {
    type Model = Net;
    type Batch = Points;

    fn loss(&self, pass: &Pass<'_, Net>, batch: &Points) -> Tensor<1> {
        let (inputs, targets) = batch.tensors(pass.device());
        let loss = CrossEntropyLossConfig::new().init(pass.device()).forward(pass.model().forward(inputs), targets);
        self.then.get()(loss)
    }

    fn metrics(&self, pass: &Pass<'_, Net>, batch: &Points) -> Metrics {
        let (inputs, targets) = batch.tensors(pass.device());
        let correct = top_k_correct(pass.model().forward(inputs), targets, 1).float();
        Metrics::new().with("accuracy", Metric::mean(correct, batch.targets.len()))
    }
}

fn data() -> TrainTest<Loader<Points>> {
    let train = LoaderConfig::new(16).with_order(Order::Shuffled { seed: 5 });
    TrainTest {
        train: Loader::new(120, train, Points::load).unwrap(), // 8 batches, the last one short
        test: Loader::new(64, LoaderConfig::new(32), Points::load).unwrap(),
    }
}

const TOTAL: u64 = 20; // two epochs and a half

fn settings(optimizer: OptimizerConfig) -> Settings {
    let schedule = ScheduleConfig { peak: 0.05, warmup: 0.2, floor: 0.1 }.into();
    Settings { schedule, steps: TOTAL, every: Intervals::default().with_evaluation(3), ..support::settings(optimizer) }
}

fn batch(epoch: u64) -> Points {
    Points::load(&BatchPlan { epoch, index: 0, ids: (0..16).collect() }).unwrap()
}

fn trainer(optimizer: OptimizerConfig) -> Trainer<Classify> {
    trainer_of(Classify::new(), optimizer)
}

fn trainer_of(task: Classify, optimizer: OptimizerConfig) -> Trainer<Classify> {
    let builder = builder(task, Net::new, &settings(optimizer)).with_seed(9);
    builder.build(&Device::flex(), &batch(0)).unwrap()
}

fn resume(trainer: &mut Trainer<Classify>, checkpoints: &Checkpoints) -> Result<Option<PathBuf>, Error> {
    trainer.set_checkpoints(checkpoints.clone());
    trainer.resume()
}

/// Runs until `stop_after` steps were seen by this process; returns the numbers of every event, bit for bit.
fn run(trainer: &mut Trainer<Classify>, checkpoints: &Checkpoints, stop_after: u64) -> (Finish, Vec<String>) {
    let seen = Rc::new(RefCell::new(vec![]));
    let (noted, mut steps) = (seen.clone(), 0);
    trainer.observe(move |event| {
        match event {
            Event::Step(report) => {
                steps += 1;
                let numbers = [report.loss, report.gradient_norm.unwrap(), report.learning_rate];
                let bits = numbers.map(f64::to_bits);
                noted.borrow_mut().push(format!("{} {} {bits:?}", report.step, report.epoch));
            }
            Event::Evaluated(evaluation) => noted.borrow_mut().push(format!("{evaluation:?}")),
            _ => {}
        }
        if steps >= stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    trainer.set_checkpoints(checkpoints.clone());
    let finish = trainer.fit(&data()).unwrap();
    (finish, seen.take())
}

fn bits(model: &Net) -> Vec<u8> {
    let _ = model.valid();
    let tensors = [model.first.weight.val(), model.last.weight.val()].map(|t| t.into_data());
    let statistics = [model.norm.running_mean.value(), model.norm.running_var.value()].map(|t| t.into_data());
    tensors.iter().chain(&statistics).flat_map(|data| data.as_bytes().to_vec()).collect()
}

#[test]
fn interrupted_at_any_step_a_run_ends_with_the_same_numbers() {
    let _turn = turn();
    for optimizer in [OptimizerConfig::sgd(), OptimizerConfig::adamw()] {
        let folder = tempfile::tempdir().unwrap();
        let whole = Checkpoints::new(folder.path().join("whole"), 3).unwrap();
        let mut reference = trainer(optimizer);
        let (finish, expected) = run(&mut reference, &whole, u64::MAX);
        assert_eq!((finish, reference.state().step), (Finish::Complete, TOTAL));
        assert_eq!(whole.list().unwrap().len(), 3);

        for stop_after in 1..TOTAL {
            let checkpoints = Checkpoints::new(folder.path().join(stop_after.to_string()), 2).unwrap();
            let mut first = trainer(optimizer);
            let (finish, mut seen) = run(&mut first, &checkpoints, stop_after);
            assert_eq!((finish, first.state().step), (Finish::Stopped, stop_after));

            let mut second = trainer(optimizer);
            assert!(resume(&mut second, &checkpoints).unwrap().is_some());
            assert_eq!(second.state(), first.state());
            let (finish, rest) = run(&mut second, &checkpoints, u64::MAX);
            assert_eq!(finish, Finish::Complete);
            seen.extend(rest);
            assert_eq!(seen, expected, "interrupted after {stop_after} steps");
            assert_eq!(bits(second.model()), bits(reference.model()), "interrupted after {stop_after} steps");
        }
    }
}

fn damage(folder: &Path, file: &str, how: fn(&mut Vec<u8>)) {
    let path = folder.join(file);
    let mut bytes = fs::read(&path).unwrap();
    how(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_checkpoints_are_passed_over_and_never_loaded() {
    let _turn = turn();
    let flip: fn(&mut Vec<u8>) = |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    let halve: fn(&mut Vec<u8>) = |bytes| bytes.truncate(bytes.len() / 2);
    let empty: fn(&mut Vec<u8>) = Vec::clear;
    for file in ["model.bpk", "optimizer.bpk", "state.json", "manifest.json"] {
        for how in [flip, halve, empty] {
            let folder = tempfile::tempdir().unwrap();
            let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
            let mut trainer = trainer(OptimizerConfig::sgd());
            let _ = run(&mut trainer, &checkpoints, 1);
            let _ = run(&mut trainer, &checkpoints, 1);
            let saved = checkpoints.list().unwrap();
            assert_eq!(saved.len(), 2);

            damage(&saved[0], file, how);
            let mut resumed = self::trainer(OptimizerConfig::sgd());
            assert_eq!(resume(&mut resumed, &checkpoints).unwrap().as_ref(), Some(&saved[1]), "{file}");
            assert_eq!(resumed.state().step, 1);

            // With both damaged nothing is loaded, and the error names the checkpoint.
            damage(&saved[1], file, how);
            let mut untouched = self::trainer(OptimizerConfig::sgd());
            let before = bits(untouched.model());
            let error = resume(&mut untouched, &checkpoints).unwrap_err();
            assert!(matches!(error, Error::Load { .. }) && error.to_string().contains("step-00000001"), "{error}");
            assert_eq!(bits(untouched.model()), before);
            assert_eq!(untouched.state().step, 0);
        }
    }

    // Damaged checkpoints of later steps do not displace the good one that the run continued from.
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let _ = run(&mut trainer(OptimizerConfig::sgd()), &checkpoints, 1);
    for later in ["step-00000010", "step-00000011"] {
        fs::create_dir(folder.path().join(later)).unwrap();
        fs::write(folder.path().join(later).join("manifest.json"), "{}").unwrap();
    }
    let mut resumed = trainer(OptimizerConfig::sgd());
    assert!(resume(&mut resumed, &checkpoints).unwrap().is_some());
    let (finish, _) = run(&mut resumed, &checkpoints, 2);
    assert_eq!(finish, Finish::Stopped);
    assert_eq!(checkpoints.list().unwrap(), [folder.path().join("step-00000003")]);
    assert_eq!(checkpoints.newest().unwrap(), Some(folder.path().join("step-00000003")));

    // A trainer that has taken further steps restores all of a checkpoint, including statistics that are not folded in yet.
    let at_three = bits(resumed.model());
    let _ = resumed.step(&batch(7)).unwrap();
    resume(&mut resumed, &checkpoints).unwrap();
    assert_eq!(resumed.state().step, 3);
    assert_eq!(bits(resumed.model()), at_three);

    // A checkpoint of a run over other data is refused.
    let mut other = trainer(OptimizerConfig::sgd());
    other.set_data(&Loader::new(119, LoaderConfig::new(16), Points::load).unwrap()).unwrap();
    let error = resume(&mut other, &checkpoints).unwrap_err().to_string();
    assert!(error.contains("a run of 120 samples, and this one has 119"), "{error}");
    // So is other data once the run is resumed.
    let mut other = trainer(OptimizerConfig::sgd());
    resume(&mut other, &checkpoints).unwrap();
    let less = Loader::new(119, LoaderConfig::new(16), Points::load).unwrap();
    assert!(matches!(other.fit(&less), Err(Error::OtherData { was: 120, now: 119 })));
    // So is another batch size, in which the position would be another one.
    let mut other = trainer(OptimizerConfig::sgd());
    resume(&mut other, &checkpoints).unwrap();
    let larger = Loader::new(120, LoaderConfig::new(32), Points::load).unwrap();
    let error = other.fit(&larger).unwrap_err();
    assert!(matches!(error, Error::OtherLength { unit: "batches an epoch", now: 4, .. }), "{error}");

    // A directory of the user's is no checkpoint, whatever it holds.
    let copy = folder.path().join("step-best");
    fs::create_dir(&copy).unwrap();
    assert!(!checkpoints.list().unwrap().contains(&copy));
    fs::remove_dir(&copy).unwrap();

    // A directory that a killed process left incomplete is skipped, and removed by the next save.
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
    let partial = folder.path().join(".step-00000009.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("model.bpk"), "half").unwrap();
    // The user's own files beside it stay, whatever their names.
    let own = ["best", "best.old", "mine.partial", ".mine.partial"].map(|name| folder.path().join(name));
    own.iter().for_each(|own| fs::create_dir(own).unwrap());
    fs::write(folder.path().join("list.partial"), "text").unwrap();
    let mut trainer = trainer(OptimizerConfig::sgd());
    assert_eq!(resume(&mut trainer, &checkpoints).unwrap(), None);
    trainer.save_to(&checkpoints).unwrap();
    assert!(!partial.exists());
    assert!(own.iter().all(|own| own.is_dir()) && folder.path().join("list.partial").is_file());

    // A manifest of another size than one can have is not read.
    let saved = trainer.save_to(&checkpoints).unwrap();
    fs::OpenOptions::new().write(true).open(saved.join("manifest.json")).unwrap().set_len(64 << 20).unwrap();
    let error = resume(&mut trainer, &checkpoints).unwrap_err().to_string();
    assert!(error.contains("manifest.json is larger than 1048576 bytes"), "{error}");

    // A directory that is named relative to the current one.
    let here = tempfile::tempdir_in(".").unwrap();
    let relative = Checkpoints::new(here.path().file_name().unwrap(), 1).unwrap();
    let saved = trainer.save_to(&relative).unwrap();
    assert!(saved.is_relative() && saved.join("manifest.json").is_file());

    // A checkpoint cannot be written where a file is in the way; nothing is left behind.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let blocked = Checkpoints::new(file.join("below"), 1).unwrap();
    assert!(matches!(trainer.save_to(&blocked), Err(Error::Save { .. })));
    assert!(matches!(Checkpoints::new(folder.path(), 0), Err(Error::InvalidSetting { .. })));
}

#[test]
fn a_step_that_fails_changes_nothing() {
    let _turn = turn();
    let task = Classify::new();
    let mut trainer = trainer_of(task.clone(), OptimizerConfig::adamw());
    let batch = batch(0);
    for _ in 0..2 {
        let _ = trainer.step(&batch).unwrap();
    }
    let state = trainer.state();
    let weights_only = |model: &Net| [model.first.weight.val().into_data(), model.last.weight.val().into_data()];
    let weights = weights_only(trainer.model());
    task.then.set(|loss| loss * f32::INFINITY);
    let infinite = trainer.step(&batch);
    assert!(matches!(infinite, Err(Error::NotFinite { step: 3, what: "loss", .. })), "{infinite:?}");
    assert_eq!(weights_only(trainer.model()), weights);

    task.then.set(|loss| Tensor::<1>::random([1], Distribution::Default, &loss.device()).require_grad());
    let unrelated = trainer.step(&batch);
    assert!(matches!(unrelated, Err(Error::NoGradients { step: 3 })), "{unrelated:?}");
    assert_eq!((weights_only(trainer.model()), trainer.state()), (weights, state));
}

#[test]
fn impossible_settings_are_refused() {
    let _turn = turn();
    let given = settings(OptimizerConfig::sgd());
    let message = |settings: Settings| {
        let built = builder(Classify::new(), Net::new, &settings).build(&Device::flex(), &batch(0));
        built.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(message(Settings { max_norm: Some(0.0), ..given.clone() }), "clip norm is 0, expected a number above 0");
    assert_eq!(message(Settings { micro_batch: Some(0), ..given.clone() }), "micro-batch is 0, expected at least 1");
    let rate = Settings { schedule: 0.0.into(), ..given };
    assert_eq!(message(rate), "learning rate is 0, expected a finite number above 0");
    let optimizer = OptimizerConfig::Sgd { momentum: 1.0, weight_decay: 0.0, nesterov: false };
    assert_eq!(optimizer.check().unwrap_err().to_string(), "momentum is 1, expected a number in [0, 1)");
    // A device without autodiff is taken with it, and a batch without samples is none.
    let plain = builder(Classify::new(), Net::new, &settings(OptimizerConfig::sgd()));
    let mut trainer = plain.build(&Device::flex(), &batch(0)).unwrap();
    let _ = trainer.step(&batch(0)).unwrap();
    let empty = Points { inputs: vec![], targets: vec![] };
    let built = builder(Classify::new(), Net::new, &settings(OptimizerConfig::sgd())).build(&Device::flex(), &empty);
    assert_eq!(built.map(|_| ()).unwrap_err().to_string(), "batch size is 0, expected at least 1");
    assert!(matches!(trainer.step(&empty), Err(Error::NothingToLearn { step: 2 })));
}
