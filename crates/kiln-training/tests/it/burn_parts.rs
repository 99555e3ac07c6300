//! Optimizers, schedulers and data loaders of burn in a run: predicted, resumed, and every sample seen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::module::{Module, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::optim::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::optim::lr_scheduler::step::StepLrSchedulerConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdaGradConfig, AdamConfig, AdamWConfig, RmsPropConfig, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use kiln_memory::{BackendProfile, Category};
use kiln_training::{
    BatchSource, BurnBatches, Checkpoints, Event, Finish, LossFn, OptimizerConfig, OptimizerGroups, Pass, Schedule,
    Task, Trainer, TrainerBuilder,
};

use crate::support::{
    Ids, Loss, Net, Settings, Snapshot, Watched, batch, builder, numbers, planned, settings, trainer, turn,
};

const STEPS: u64 = 12;
const SIZE: usize = 6;

/// Steps from the position of `trainer` to step `end`: their numbers.
fn steps<T: Task<Batch = Vec<usize>>>(trainer: &mut Trainer<T>, end: u64) -> Vec<String> {
    let mut seen = vec![];
    while trainer.state().step < end {
        let at = trainer.state().step;
        seen.push(numbers(&trainer.step(&batch(at, SIZE)).unwrap()));
    }
    seen
}

/// Compares a whole run with runs that are interrupted after each step, by all that they report and become.
fn resumes_alike<T: Task<Batch = Vec<usize>>>(new: impl Fn() -> Trainer<T>, context: &str) {
    let mut whole = new();
    let expected = steps(&mut whole, STEPS);
    let whole = Snapshot::of(&whole);
    for stop in 1..STEPS {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
        let mut first = new();
        let mut seen = steps(&mut first, stop);
        first.save_to(&checkpoints).unwrap();
        let mut second = new();
        // It may have taken steps of its own before.
        if stop % 3 == 0 {
            let _ = steps(&mut second, 5);
        }
        second.set_checkpoints(checkpoints);
        assert!(second.resume().unwrap().is_some());
        seen.extend(steps(&mut second, STEPS));
        assert_eq!(seen, expected, "{context}, interrupted after {stop} steps");
        Snapshot::of(&second).assert_same(&whole, context);
    }
}

#[test]
fn schedulers_of_burn_give_a_resumed_run_the_same_rates() {
    let _turn = turn();
    let schedules = [
        ("linear", Schedule::burn(LinearLrSchedulerConfig::new(0.1, 0.001, 10).init().unwrap())),
        ("cosine", Schedule::burn(CosineAnnealingLrSchedulerConfig::new(0.1, 5).init().unwrap())),
        ("exponential", Schedule::burn(ExponentialLrSchedulerConfig::new(0.1, 0.8).init().unwrap())),
        ("step", Schedule::burn(StepLrSchedulerConfig::new(0.1, 4).init().unwrap())),
        ("noam", Schedule::burn(NoamLrSchedulerConfig::new(0.1).with_warmup_steps(4).init().unwrap())),
    ];
    let net = Net::new(&[8, 16], true, 0.2);
    for (name, schedule) in schedules {
        let settings = Settings { schedule, steps: STEPS, ..settings(OptimizerConfig::sgd()) };
        let init = |_: &Device| net.valid().train();
        let new = || builder(Ids::net(), init, &settings).build(&Device::flex(), &batch(0, SIZE)).unwrap();
        let mut trainer = new();
        let rate = |at| trainer.step(&batch(at, SIZE)).unwrap().learning_rate;
        let rates: Vec<f64> = (0..STEPS).map(rate).collect();
        assert!(rates.windows(2).any(|pair| pair[0] != pair[1]), "{name}: {rates:?}");
        resumes_alike(new, name);
    }
}

/// Momentum for the last layer, Adam for the others.
fn two_optimizers<M>(_: &M) -> OptimizerGroups {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let sgd = SgdConfig::new().with_momentum(Some(momentum)).build();
    OptimizerGroups::from(AdamConfig::new().build()).with_group(ParamGroup::from_predicate("last"), sgd)
}

#[derive(Module, Debug)]
struct Wide {
    first: Linear,
    last: Linear,
}

const INPUT: usize = 48;
const HIDDEN: usize = 32;

fn wide() -> TrainerBuilder<'static, impl Task<Model = Wide, Batch = TensorData>> {
    let task = LossFn::new(|pass: &Pass<'_, Wide>, x: &TensorData| {
        let x: Tensor<2> = pass.input(x);
        let x = pass.model().last.forward(pass.model().first.forward(x).tanh());
        (x - 1.0).square().mean()
    });
    let init = |device: &Device| Wide {
        first: LinearConfig::new(INPUT, HIDDEN).init(device),
        last: LinearConfig::new(HIDDEN, 3).init(device),
    };
    planned(task, init, &settings(OptimizerConfig::sgd()))
}

#[test]
fn the_state_of_every_group_of_parameters_is_predicted() {
    let _turn = turn();
    let x = TensorData::new(vec![0.5f32; 8 * INPUT], [8, INPUT]);
    let (first, last) = (4 * (INPUT * HIDDEN + HIDDEN) as u64, 4 * (HIDDEN * 3 + 3) as u64);
    let plain = SgdConfig::new();
    let momentum = || SgdConfig::new().with_momentum(Some(MomentumConfig::new())).build();
    let last_of = || ParamGroup::from_predicate("last");
    type Make = Box<dyn Fn(&Wide) -> OptimizerGroups>;
    let cases: [(&str, Make, u64); 5] = [
        ("SGD alone", Box::new(move |_| plain.build().into()), 0),
        ("momentum alone", Box::new(move |_| momentum().into()), first + last),
        ("Adam alone", Box::new(|_| AdamConfig::new().build().into()), 2 * (first + last)),
        ("Adam, and momentum for the last layer", Box::new(two_optimizers), 2 * first + last),
        (
            "momentum, and Adam for the last layer",
            Box::new(move |_| OptimizerGroups::from(momentum()).with_group(last_of(), AdamConfig::new().build())),
            first + 2 * last,
        ),
    ];
    for (name, make, expected) in cases {
        // Without the bytes that the allocator takes for each buffer.
        let profile = BackendProfile { buffer_bytes: 0, ..BackendProfile::flex() };
        let mut trainer = wide()
            .with_optimizer(make)
            .with(|settings| settings.memory.profile = Some(profile))
            .build(&Device::flex(), &x)
            .unwrap();
        let prediction = trainer.predict(8).unwrap();
        let state = prediction.buffers.iter();
        let state = state.filter(|buffer| buffer.category == Category::OptimizerState && buffer.born == 0);
        // Adam's count of steps is a number on the host, or a tensor of one element.
        let state: u64 = state.filter(|buffer| buffer.shape != [1]).map(|buffer| buffer.bytes).sum();
        assert_eq!(state, expected, "{name}");
        let _ = trainer.step(&x).unwrap();
    }
}

#[test]
fn a_run_of_two_optimizers_resumes_bit_for_bit() {
    let _turn = turn();
    let net = Net::new(&[8, 16, 16], true, 0.2);
    let settings = Settings { steps: STEPS, ..settings(OptimizerConfig::sgd()) };
    let new = || {
        let builder = builder(Ids::net(), |_| net.valid().train(), &settings);
        builder.with_optimizer(two_optimizers).build(&Device::flex(), &batch(0, SIZE)).unwrap()
    };
    resumes_alike(new, "momentum and Adam");
    // It is not the run of either optimizer alone.
    let run = |groups: fn(&Net) -> OptimizerGroups| {
        let builder = builder(Ids::net(), |_| net.valid().train(), &settings);
        let mut trainer = builder.with_optimizer(groups).build(&Device::flex(), &batch(0, SIZE)).unwrap();
        steps(&mut trainer, 3)
    };
    let both = run(two_optimizers);
    assert_ne!(both, run(|_| AdamConfig::new().build().into()));
    assert_ne!(both, run(|_| SgdConfig::new().build().into()));
}

#[test]
fn a_run_does_not_resume_with_other_optimizers() {
    let _turn = turn();
    let net = Net::new(&[8, 16], false, 0.0);
    let settings = settings(OptimizerConfig::sgd());
    let new = |groups: fn(&Net) -> OptimizerGroups| {
        let builder = builder(Ids::net(), |_| net.valid().train(), &settings);
        builder.with_optimizer(groups).build(&Device::flex(), &batch(0, SIZE)).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let mut first = new(two_optimizers);
    let _ = steps(&mut first, 3);
    first.save_to(&checkpoints).unwrap();
    let others: [fn(&Net) -> OptimizerGroups; 4] = [
        |_| AdamConfig::new().build().into(),
        |_| AdamWConfig::new().build().into(),
        |_| {
            let last = ParamGroup::from_predicate("last");
            OptimizerGroups::from(AdamConfig::new().build()).with_group(last, RmsPropConfig::new().build())
        },
        |_| {
            let last = ParamGroup::from_predicate("last");
            OptimizerGroups::from(AdaGradConfig::new().build()).with_group(last, SgdConfig::new().build())
        },
    ];
    for (number, other) in others.into_iter().enumerate() {
        let mut other = new(other);
        let before = Snapshot::of(&other);
        other.set_checkpoints(checkpoints.clone());
        let error = other.resume().unwrap_err().to_string();
        assert!(
            error.contains("its optimizer is ") && error.contains("the settings have changed"),
            "{number}: {error}"
        );
        Snapshot::of(&other).assert_same(&before, "refused");
    }
    let mut same = new(two_optimizers);
    same.set_checkpoints(checkpoints);
    assert!(same.resume().unwrap().is_some());
}

/// Samples are their own numbers.
struct Numbers;

impl Batcher<usize, Vec<usize>> for Numbers {
    fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
        items
    }
}

const SAMPLES: usize = 50;

fn loader(workers: usize) -> Arc<dyn DataLoader<Vec<usize>>> {
    let builder = DataLoaderBuilder::new(Numbers).batch_size(12).shuffle(5).num_workers(workers);
    builder.set_device(Device::flex()).build(InMemDataset::new((0..SAMPLES).collect()))
}

#[test]
fn a_run_over_a_data_loader_of_burn_sees_every_sample_in_every_epoch() {
    const EPOCHS: u64 = 3;
    let _turn = turn();
    for workers in [0, 1, 2, 3] {
        let attempt = Rc::new(RefCell::new(vec![]));
        let noted = attempt.clone();
        let loss: Loss<Net> = Box::new(move |model, ids, device| {
            noted.borrow_mut().extend_from_slice(ids);
            model.loss(ids, device)
        });
        let net = Net::new(&[8, 16], false, 0.0);
        let init = |_: &Device| net.valid().train();
        let builder = builder(Ids(loss), init, &settings(OptimizerConfig::sgd())).with_epochs(EPOCHS);
        let mut trainer = builder.build(&Device::flex(), &batch(0, 12)).unwrap();
        let trained = Rc::new(RefCell::new(BTreeMap::<u64, Vec<usize>>::new()));
        let epochs = trained.clone();
        trainer.observe(move |event| {
            if let Event::Step(report) = event {
                epochs.borrow_mut().entry(report.epoch).or_default().extend(attempt.take());
            }
            ControlFlow::Continue(())
        });
        let data = BurnBatches::new(loader(workers), 12);
        assert_eq!((data.batches(), data.samples()), (5, SAMPLES));
        assert_eq!(trainer.fit(&data).unwrap(), Finish::Complete);
        assert_eq!((trainer.state().step, trainer.total_steps()), (5 * EPOCHS, Some(5 * EPOCHS)));
        let trained = trained.take();
        assert_eq!(trained.len() as u64, EPOCHS);
        assert_ne!(trained[&0], trained[&1], "shuffled anew");
        for (epoch, mut ids) in trained {
            ids.sort_unstable();
            assert!(ids.iter().copied().eq(0..SAMPLES), "{workers} workers, epoch {epoch}: {ids:?}");
        }
        let evaluation = trainer.evaluate(&data).unwrap();
        assert_eq!(evaluation.metrics, [("samples", 10.0)], "a mean over 5 batches");
    }
}

#[test]
fn a_run_over_a_data_loader_of_burn_stops_and_goes_on() {
    let _turn = turn();
    let net = Net::new(&[8, 16], false, 0.0);
    let folder = tempfile::tempdir().unwrap();
    let new = || {
        let mut trainer: Watched<Ids<Net>> =
            trainer(&net, Ids::net(), &Settings { steps: 11, ..settings(OptimizerConfig::sgd()) });
        trainer.set_checkpoints(Checkpoints::new(folder.path(), 1).unwrap());
        trainer
    };
    let data = BurnBatches::new(loader(0), 12);
    let mut first = new();
    first.observe(|event| match event {
        Event::Step(report) if report.step == 7 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert_eq!(first.fit(&data).unwrap(), Finish::Stopped);
    let mut second = new();
    assert!(second.resume().unwrap().is_some());
    assert_eq!((second.state().step, second.state().epoch, second.state().batch), (7, 1, 2));
    assert_eq!(second.fit(&data).unwrap(), Finish::Complete);
    assert_eq!((second.state().step, second.state().epoch, second.state().batch), (11, 2, 1));
}
