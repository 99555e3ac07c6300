//! A run over a data set of which some files cannot be read: whole batches may be missing, at the end of an epoch too.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use kiln_data::{BadSamples, BatchPlan, Error, Loader, LoaderConfig, Order, TrainTest, Worker};
use kiln_training::{Checkpoints, Event, Finish, OptimizerConfig, ScheduleConfig};

use crate::support::{Ids, Net, Settings, Watched, batch, beside, builder, settings, temporary};

const SAMPLES: usize = 24;

/// Samples that can be read, in batches of 2.
fn loader(order: Order, bad: fn(usize) -> bool) -> Loader<Vec<usize>> {
    let make = move |plan: &BatchPlan, worker: &Worker| {
        let load = |id| match bad(id) {
            true => Err(Error::Format { path: Path::new("photo.jpg").into(), reason: "cut short".into() }),
            false => Ok(id),
        };
        let ids: Result<Vec<usize>, Error> =
            plan.ids.iter().filter_map(|id| worker.sample(plan, *id, load).transpose()).collect();
        match ids? {
            ids if ids.is_empty() => {
                Err(Error::NothingLeft { epoch: plan.epoch, batch: plan.index, samples: plan.ids.len() })
            }
            ids => Ok(ids),
        }
    };
    let config = LoaderConfig::new(2).with_order(order).with_bad_samples(BadSamples::skip(SAMPLES));
    Loader::budgeted(SAMPLES, config, |_| 0, make).unwrap()
}

const STEPS: u64 = 60;
const EPOCHS: u64 = 4;

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Length {
    Steps,
    Epochs,
}

/// A step of a run: its epoch, its learning rate and the samples that it was trained on.
type Step = (u64, f64, Vec<usize>);

/// Trains, stopping after `stop` of the steps if any. Returns what was trained and the epochs of the evaluations.
fn run(
    bad: fn(usize) -> bool,
    length: Length,
    checkpoints: &Checkpoints,
    stop: Option<u64>,
) -> (Vec<Step>, Vec<u64>, Finish) {
    let trained = Arc::new(Mutex::new(vec![]));
    let seen = trained.clone();
    let task = Ids(Box::new(move |model: &Net, ids: &[usize], device: &Device| {
        seen.lock().unwrap().push(ids.to_vec());
        model.loss(ids, device)
    }));
    let settings = Settings { steps: STEPS, ..settings(OptimizerConfig::sgd()) };
    let builder = builder(task, |_| Net::new(&[8, 16], false, 0.0), &settings);
    let builder = if length == Length::Epochs { builder.with_epochs(EPOCHS) } else { builder };
    let mut trainer = Watched::build(builder, &batch(0, 8));
    trainer.set_checkpoints(checkpoints.clone());
    let data = TrainTest { train: loader(Order::Shuffled { seed: 3 }, bad), test: loader(Order::Sequential, bad) };
    trainer.set_data(&data.train).unwrap();
    trainer.resume().unwrap();
    let (steps, evaluated) = (Rc::new(RefCell::new(vec![])), Rc::new(RefCell::new(vec![])));
    let noted = (steps.clone(), evaluated.clone());
    trainer.observe(move |event| {
        match event {
            Event::Step(report) => {
                noted.0.borrow_mut().push((report.epoch, report.learning_rate));
                if stop == Some(report.step) {
                    return ControlFlow::Break(());
                }
            }
            Event::Evaluated(evaluation) => noted.1.borrow_mut().push(evaluation.epochs),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let finish = trainer.fit(&data);
    let trained = std::mem::take(&mut *trained.lock().unwrap());
    let steps = steps.take().into_iter().zip(trained).map(|((epoch, rate), ids)| (epoch, rate, ids)).collect();
    (steps, evaluated.take(), finish.unwrap())
}

fn bad(id: usize) -> bool {
    id.is_multiple_of(2) || id > 15
}

/// Which batches of an epoch have a sample that can be read, by their place.
fn readable(epoch: u64) -> Vec<bool> {
    let plans = loader(Order::Shuffled { seed: 3 }, bad);
    (0..plans.batches()).map(|batch| !plans.sampler().ids(epoch, batch).iter().all(|id| bad(*id))).collect()
}

#[test]
fn a_run_passes_over_batches_of_which_nothing_can_be_read_and_goes_on_from_between_them() {
    let _turn = beside();
    let directory = temporary();
    for length in [Length::Steps, Length::Epochs] {
        let folder = directory.path().join(format!("{length:?}"));
        let checkpoints = Checkpoints::new(folder.join("whole"), 2).unwrap();
        let (whole, evaluated, finish) = run(bad, length, &checkpoints, None);
        assert_eq!(finish, Finish::Complete);
        let good: BTreeSet<usize> = (0..SAMPLES).filter(|id| !bad(*id)).collect();
        let complete = match length {
            Length::Epochs => EPOCHS,
            Length::Steps => whole.last().unwrap().0,
        };
        for epoch in 0..complete {
            let mut ids: Vec<usize> =
                whole.iter().filter(|(of, ..)| *of == epoch).flat_map(|(.., ids)| ids.clone()).collect();
            ids.sort_unstable();
            assert_eq!(ids, good.iter().copied().collect::<Vec<_>>(), "epoch {epoch}");
        }
        // The data really has such batches, and an epoch ends in one.
        assert!((0..complete).any(|epoch| !readable(epoch).last().unwrap()));
        assert!((0..complete).any(|epoch| readable(epoch).iter().rev().skip(1).any(|readable| !readable)));
        match length {
            Length::Steps => assert_eq!(whole.len() as u64, STEPS),
            Length::Epochs => {
                assert_eq!(evaluated, (1..=EPOCHS).collect::<Vec<_>>());
                assert_eq!(whole.iter().map(|(epoch, ..)| *epoch).max(), Some(EPOCHS - 1), "so many passes");
                // A rate is that of the batch's place in the run.
                let places = (0..EPOCHS).flat_map(readable).enumerate().filter(|(_, readable)| *readable);
                let schedule = ScheduleConfig::cosine(0.02).with_floor(0.1);
                let total = EPOCHS * (SAMPLES as u64 / 2);
                let rates: Vec<f64> = places.map(|(place, _)| schedule.rate(place as u64, total)).collect();
                assert_eq!(whole.iter().map(|(_, rate, _)| *rate).collect::<Vec<_>>(), rates);
            }
        }
        for stop in [1, 7, 8, 9, 20] {
            let checkpoints = Checkpoints::new(folder.join(stop.to_string()), 2).unwrap();
            let (mut parts, _, finish) = run(bad, length, &checkpoints, Some(stop));
            assert_eq!(finish, Finish::Stopped);
            parts.extend(run(bad, length, &checkpoints, None).0);
            assert_eq!(parts, whole, "{length:?}, stopped after {stop}");
        }
    }
}
