//! A run that was interrupted goes on as if it had not been, and a damaged checkpoint is not used.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use kiln_accumulation::Weight;
use kiln_data::{BatchPlan, Error as DataError, Loader, LoaderConfig, Order, TrainTest, sample_rng};
use kiln_training::{
    Checkpoints, Error, Event, Every, Finish, OptimizerConfig, ScheduleConfig, StepSettings, Task, Trainer, fit,
    top_k_correct,
};
use rand::RngExt;

/// Everything that has state: weights, running statistics, dropout.
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

struct Batch {
    inputs: Vec<f32>,
    targets: Vec<i64>,
}

impl Batch {
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

struct Classify;

impl Task for Classify {
    type Model = Net;
    type Batch = Batch;

    fn samples(&self, batch: &Batch) -> usize {
        batch.targets.len()
    }

    fn weight(&self, batch: &Batch) -> Weight {
        Weight::Samples(batch.targets.len())
    }

    fn slice(&self, batch: &Batch, samples: Range<usize>) -> Batch {
        let inputs = batch.inputs[8 * samples.start..8 * samples.end].to_vec();
        Batch { inputs, targets: batch.targets[samples].to_vec() }
    }

    fn loss(&self, model: &Net, batch: &Batch, device: &Device) -> Tensor<1> {
        let (inputs, targets) = batch.tensors(device);
        CrossEntropyLossConfig::new().init(device).forward(model.forward(inputs), targets)
    }

    fn measure(&self, model: &Net, batch: &Batch, device: &Device) -> Tensor<1> {
        let (inputs, targets) = batch.tensors(device);
        let correct = top_k_correct(model.forward(inputs), targets, 1).float();
        Tensor::cat(vec![Tensor::from_floats([batch.targets.len() as f32], device), correct], 0)
    }

    fn figures(&self, sums: &[f64]) -> Vec<(&'static str, f64)> {
        vec![("accuracy", sums[1] / sums[0])]
    }
}

fn data() -> TrainTest<Loader<Batch>> {
    let train = LoaderConfig { order: Order::Shuffled { seed: 5 }, ..LoaderConfig::new(16) };
    TrainTest {
        train: Loader::new(120, train, Batch::load).unwrap(), // 8 batches, the last one short
        test: Loader::new(64, LoaderConfig::new(32), Batch::load).unwrap(),
    }
}

const TOTAL: u64 = 20; // two epochs and a half

fn settings(optimizer: OptimizerConfig) -> StepSettings {
    let schedule = ScheduleConfig { peak: 0.05, warmup: 0.2, floor: 0.1 };
    let device = Device::flex().autodiff();
    StepSettings { samples: 120, max_norm: Some(1.0), ..StepSettings::new(optimizer, schedule, TOTAL, device) }
}

fn trainer(optimizer: OptimizerConfig) -> Trainer<Net> {
    let settings = settings(optimizer);
    settings.device.seed(9);
    Trainer::new(Net::new(&settings.device), 9, settings).unwrap()
}

/// Runs until `stop_after` steps were seen by this process; returns the numbers of every event, bit for bit.
fn run(trainer: &mut Trainer<Net>, checkpoints: &Checkpoints, stop_after: u64) -> (Finish, Vec<String>) {
    let (mut seen, mut steps) = (vec![], 0);
    let mut observe = |event: &Event| {
        match event {
            Event::Step(report) => {
                steps += 1;
                let numbers = [report.loss, report.gradient_norm.unwrap(), report.learning_rate];
                let bits = numbers.map(f64::to_bits);
                seen.push(format!("{} {} {bits:?}", report.step, report.epoch));
            }
            Event::Evaluated(evaluation) => seen.push(format!("{evaluation:?}")),
            Event::Saving | Event::Saved(_) => {}
        }
        if steps >= stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let finish = fit(&Classify, trainer, &data(), checkpoints, Every { evaluate: 3, save: 0 }, &mut observe).unwrap();
    (finish, seen)
}

fn bits(model: &Net) -> Vec<u8> {
    let _ = model.valid();
    let tensors = [model.first.weight.val(), model.last.weight.val()].map(|t| t.into_data());
    let statistics = [model.norm.running_mean.value(), model.norm.running_var.value()].map(|t| t.into_data());
    tensors.iter().chain(&statistics).flat_map(|data| data.as_bytes().to_vec()).collect()
}

// The device's random numbers belong to the process, so that runs take turns: one test.
#[test]
fn interrupted_at_any_step_a_run_ends_with_the_same_numbers() {
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
            assert!(checkpoints.resume(&mut second).unwrap().is_some());
            assert_eq!(second.state(), first.state());
            let (finish, rest) = run(&mut second, &checkpoints, u64::MAX);
            assert_eq!(finish, Finish::Complete);
            seen.extend(rest);
            assert_eq!(seen, expected, "interrupted after {stop_after} steps");
            assert_eq!(bits(second.model()), bits(reference.model()), "interrupted after {stop_after} steps");
        }
    }
    damaged_checkpoints();
    a_step_that_fails_changes_nothing();
}

fn damage(folder: &Path, file: &str, how: fn(&mut Vec<u8>)) {
    let path = folder.join(file);
    let mut bytes = fs::read(&path).unwrap();
    how(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn damaged_checkpoints() {
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
            assert_eq!(checkpoints.resume(&mut resumed).unwrap().as_ref(), Some(&saved[1]), "{file}");
            assert_eq!(resumed.state().step, 1);

            // With both damaged nothing is loaded, and the error names the checkpoint.
            damage(&saved[1], file, how);
            let mut untouched = self::trainer(OptimizerConfig::sgd());
            let before = bits(untouched.model());
            let error = checkpoints.resume(&mut untouched).unwrap_err();
            assert!(matches!(error, Error::Load { .. }) && error.to_string().contains("step-00000001"), "{error}");
            assert_eq!(bits(untouched.model()), before);
            assert_eq!(untouched.state().step, 0);
        }
    }

    // Damaged checkpoints of later steps do not push out the good one that the run went on from.
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let _ = run(&mut trainer(OptimizerConfig::sgd()), &checkpoints, 1);
    for later in ["step-00000010", "step-00000011"] {
        fs::create_dir(folder.path().join(later)).unwrap();
        fs::write(folder.path().join(later).join("manifest.json"), "{}").unwrap();
    }
    let mut resumed = trainer(OptimizerConfig::sgd());
    assert!(checkpoints.resume(&mut resumed).unwrap().is_some());
    let (finish, _) = run(&mut resumed, &checkpoints, 2);
    assert_eq!(finish, Finish::Stopped);
    assert_eq!(checkpoints.list().unwrap(), [folder.path().join("step-00000003")]);
    assert_eq!(checkpoints.newest().unwrap(), Some(folder.path().join("step-00000003")));

    // A trainer that has gone on takes back all of a checkpoint, statistics that are not folded in yet included.
    let at_three = bits(resumed.model());
    let batch = Batch::load(&BatchPlan { epoch: 7, index: 0, ids: (0..16).collect() }).unwrap();
    let _ = resumed.step(|model, device| Classify.loss(model, &batch, device)).unwrap();
    checkpoints.resume(&mut resumed).unwrap();
    assert_eq!(resumed.state().step, 3);
    assert_eq!(bits(resumed.model()), at_three);

    // A checkpoint of a run over other data is refused.
    let mut other =
        Trainer::new(Net::new(resumed.device()), 9, StepSettings { samples: 119, ..settings(OptimizerConfig::sgd()) })
            .unwrap();
    let error = checkpoints.resume(&mut other).unwrap_err().to_string();
    assert!(error.contains("a run of 120 samples, and this one has 119"), "{error}");

    // A directory that a killed process left half-written is passed over, and removed by the next save.
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
    let partial = folder.path().join(".step-00000009.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("model.bpk"), "half").unwrap();
    let mut trainer = trainer(OptimizerConfig::sgd());
    assert_eq!(checkpoints.resume(&mut trainer).unwrap(), None);
    checkpoints.save(&trainer).unwrap();
    assert!(!partial.exists());

    // A directory that is named relative to the current one.
    let here = tempfile::tempdir_in(".").unwrap();
    let relative = Checkpoints::new(here.path().file_name().unwrap(), 1).unwrap();
    let saved = relative.save(&trainer).unwrap();
    assert!(saved.is_relative() && saved.join("manifest.json").is_file());

    // A checkpoint cannot be written where a file is in the way; nothing is left behind.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let blocked = Checkpoints::new(file.join("below"), 1).unwrap();
    assert!(matches!(blocked.save(&trainer), Err(Error::Save { .. })));
    assert!(matches!(Checkpoints::new(folder.path(), 0), Err(Error::InvalidSetting { .. })));
}

fn a_step_that_fails_changes_nothing() {
    let mut trainer = trainer(OptimizerConfig::adamw());
    let batch = Batch::load(&BatchPlan { epoch: 0, index: 0, ids: (0..16).collect() }).unwrap();
    for _ in 0..2 {
        let _ = trainer.step(|model, device| Classify.loss(model, &batch, device)).unwrap();
    }
    let state = trainer.state();
    let weights_only = |model: &Net| [model.first.weight.val().into_data(), model.last.weight.val().into_data()];
    let weights = weights_only(trainer.model());
    let infinite = trainer.step(|model, device| Classify.loss(model, &batch, device) * f32::INFINITY);
    assert!(matches!(infinite, Err(Error::NotFinite { step: 3, what: "loss", .. })), "{infinite:?}");
    assert_eq!(weights_only(trainer.model()), weights);

    let unrelated = trainer.step(|_, device| Tensor::<1>::random([1], Distribution::Default, device).require_grad());
    assert!(matches!(unrelated, Err(Error::NoGradients { step: 3 })), "{unrelated:?}");
    assert_eq!((weights_only(trainer.model()), trainer.state()), (weights, state));
}

#[test]
fn impossible_settings_are_refused() {
    let device = Device::flex();
    let settings = StepSettings::new(OptimizerConfig::sgd(), ScheduleConfig::default(), 1, device.clone().autodiff());
    let message = |settings: StepSettings| {
        let model = Net::new(&settings.device);
        Trainer::new(model, 0, settings).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        message(StepSettings { max_norm: Some(0.0), ..settings.clone() }),
        "clip norm is 0, expected a number above 0"
    );
    assert_eq!(
        message(StepSettings { micro_batch: Some(0), ..settings.clone() }),
        "micro-batch is 0, expected at least 1"
    );
    let optimizer = OptimizerConfig::Sgd { momentum: 1.0, weight_decay: 0.0, nesterov: false };
    assert_eq!(message(StepSettings { optimizer, ..settings.clone() }), "momentum is 1, expected a number in [0, 1)");
    assert!(message(StepSettings { device, ..settings }).ends_with("expected an autodiff device"));
}
