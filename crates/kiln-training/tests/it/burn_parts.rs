//! Optimizers and data loaders of burn in a run: predicted, not confused, and every sample seen.

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
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdaGradConfig, AdamConfig, AdamWConfig, RmsPropConfig, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use kiln_memory::{BackendProfile, Category};
use kiln_training::{
    BatchSource, BurnBatches, Checkpoints, Event, Finish, LossFn, OptimizerConfig, OptimizerGroups, Pass, Task,
    Trainer, TrainerBuilder,
};

use crate::support::{
    Ids, Loss, Net, Settings, Snapshot, Watched, batch, beside, builder, numbers, planned, settings, temporary, trainer,
};

const SIZE: usize = 6;

/// Takes three steps.
fn steps(trainer: &mut Trainer<Ids<Net>>) -> Vec<String> {
    (0..3).map(|at| numbers(&trainer.step(&batch(at, SIZE)).unwrap())).collect()
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
    let _turn = beside();
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
fn a_run_of_two_optimizers_is_neither_alone_and_does_not_resume_with_others() {
    let _turn = beside();
    let net = Net::new(&[8, 16], false, 0.0);
    let settings = settings(OptimizerConfig::sgd());
    let new = |groups: fn(&Net) -> OptimizerGroups| {
        let builder = builder(Ids::net(), |_| net.valid().train(), &settings);
        builder.with_optimizer(groups).build(&Device::flex(), &batch(0, SIZE)).unwrap()
    };
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    let mut first = new(two_optimizers);
    let both = steps(&mut first);
    first.save_to(&checkpoints).unwrap();
    let others: [fn(&Net) -> OptimizerGroups; 5] = [
        |_| AdamConfig::new().build().into(),
        |_| SgdConfig::new().build().into(),
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
    for (number, groups) in others.into_iter().enumerate() {
        assert_ne!(both, steps(&mut new(groups)), "{number}");
        let mut other = new(groups);
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
    let _turn = beside();
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
    let _turn = beside();
    let net = Net::new(&[8, 16], false, 0.0);
    let folder = temporary();
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

/// burn computes a few sequences together and many of them one by one, so that two samples have other operations than three.
#[test]
fn linear_layers_on_sequences_are_recorded_whatever_burn_does_with_a_few_samples() {
    let _turn = beside();
    const TOKENS: usize = 271;
    const OUTPUTS: usize = 384;
    let init = |device: &Device| LinearConfig::new(4, OUTPUTS).init(device);
    let trainer = |samples: usize| {
        let task = LossFn::new(|pass: &Pass<'_, Linear>, x: &TensorData| {
            let x: Tensor<3> = pass.input(x);
            pass.model().forward(x).square().mean()
        });
        let x = TensorData::new(vec![0.5f32; samples * TOKENS * 4], [samples, TOKENS, 4]);
        planned(task, init, &settings(OptimizerConfig::sgd())).build(&Device::flex(), &x)
    };
    let predicted = trainer(5).unwrap().predict(5).unwrap();
    assert!(predicted.peak_bytes > (5 * TOKENS * OUTPUTS * 4) as u64);
    // Three samples are not enough to find two numbers of samples with the same operations.
    assert!(trainer(3).unwrap().predict(3).is_err());
}
