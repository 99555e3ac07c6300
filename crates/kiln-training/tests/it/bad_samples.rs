//! A run over a data set of which some files cannot be read: whole batches may be missing, at the end of an epoch too.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use kiln_data::{BadSamples, BatchPlan, Error, Loader, LoaderConfig, Order, TrainTest, Worker};
use kiln_training::{Checkpoints, Event, Finish, OptimizerConfig};

use crate::support::{Ids, Net, Settings, settings, trainer, turn};

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

/// Trains for six epochs' worth of steps, stopping after `stop` of them if any; what was trained in which epoch.
fn run(bad: fn(usize) -> bool, checkpoints: &Checkpoints, stop: Option<u64>) -> (Vec<(u64, Vec<usize>)>, Finish) {
    let trained = Arc::new(Mutex::new(vec![]));
    let seen = trained.clone();
    let task = Ids(Box::new(move |model: &Net, ids: &[usize], device: &Device| {
        seen.lock().unwrap().push(ids.to_vec());
        model.loss(ids, device)
    }));
    let net = Net::new(&[8, 16], false, 0.0);
    let settings = Settings { steps: 60, ..settings(OptimizerConfig::sgd()) };
    let mut trainer = trainer(&net, task, &settings);
    trainer.set_checkpoints(checkpoints.clone());
    trainer.resume().unwrap();
    let data = TrainTest { train: loader(Order::Shuffled { seed: 3 }, bad), test: loader(Order::Sequential, bad) };
    let epochs = Rc::new(RefCell::new(vec![]));
    let noted = epochs.clone();
    trainer.observe(move |event| match event {
        Event::Step(report) => {
            noted.borrow_mut().push(report.epoch);
            if stop == Some(report.step) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        _ => ControlFlow::Continue(()),
    });
    let finish = trainer.fit(&data);
    let trained = std::mem::take(&mut *trained.lock().unwrap());
    (epochs.take().into_iter().zip(trained).collect(), finish.unwrap())
}

#[test]
fn a_run_passes_over_batches_of_which_nothing_can_be_read_and_goes_on_from_between_them() {
    let _turn = turn();
    let bad: fn(usize) -> bool = |id| id % 2 == 0 || id > 15;
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path().join("whole"), 2).unwrap();
    let (whole, finish) = run(bad, &checkpoints, None);
    assert_eq!((whole.len(), finish), (60, Finish::Complete));
    let good: BTreeSet<usize> = (0..SAMPLES).filter(|id| !bad(*id)).collect();
    let last = whole.last().unwrap().0;
    for epoch in 0..last {
        let mut ids: Vec<usize> =
            whole.iter().filter(|(of, _)| *of == epoch).flat_map(|(_, ids)| ids.clone()).collect();
        ids.sort_unstable();
        assert_eq!(ids, good.iter().copied().collect::<Vec<_>>(), "epoch {epoch}");
    }
    // The data really has such batches, and an epoch ends in one.
    let plans = loader(Order::Shuffled { seed: 3 }, bad);
    let empty = |epoch, batch| plans.sampler().ids(epoch, batch).iter().all(|id| bad(*id));
    assert!((0..last).any(|epoch| empty(epoch, plans.batches() - 1)));
    assert!((0..last).any(|epoch| (0..plans.batches() - 1).any(|batch| empty(epoch, batch))));

    for stop in [1, 7, 8, 9, 30] {
        let checkpoints = Checkpoints::new(directory.path().join(stop.to_string()), 2).unwrap();
        let (mut parts, finish) = run(bad, &checkpoints, Some(stop));
        assert_eq!(finish, Finish::Stopped);
        parts.extend(run(bad, &checkpoints, None).0);
        assert_eq!(parts, whole, "stopped after {stop}");
    }
}
