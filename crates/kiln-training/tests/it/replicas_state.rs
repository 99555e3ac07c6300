//! The optimizer's state of replicas, whole or divided: its bytes, checkpoints, and runs that continue with another number of replicas.

use std::cell::Cell;
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use kiln_data::{Loader, LoaderConfig, Order, Replica};
use kiln_parallel::Communicator;
use kiln_training::{Checkpoints, Error, Finish, Intervals, OptimizerConfig, Trainer};

use crate::case::{Case, Classify, Make, Parts, Samples, Way, on_all};
use crate::support::{Ids, Net, Settings, Snapshot, Watched, batch, builder, noted, settings, temporary, told, turn};

/// Batches of 6 samples over all replicas, the last one of an epoch short.
const SIZE: usize = 6;
const SAMPLES: usize = 22;
const STEPS: u64 = 9;

/// The part of replica `rank` of `count`.
fn loader(rank: usize, count: usize) -> Loader<Samples> {
    let config = LoaderConfig::new(SIZE)
        .with_order(Order::Shuffled { seed: 5 })
        .with_replica(Replica::new(rank, count).unwrap());
    Loader::new(SAMPLES, config, |plan| Ok(Samples::of(plan.ids.clone()))).unwrap()
}

/// A run in micro-batches of two samples that saves after every second step.
fn case(optimizer: OptimizerConfig) -> Case {
    let make = Make::Chain(Parts { dropout: 0.2, ..Parts::new(1) });
    let every = Intervals::default().with_checkpoint(2);
    Case::new(make, optimizer, SIZE, 2).with(|settings| Settings { steps: STEPS, every, ..settings })
}

/// Trains until `stop` steps were taken, from the newest checkpoint on; the numbers of the steps, and everything at the end.
fn fit(case: &Case, replicas: usize, directory: &Path, stop: u64) -> (Vec<String>, Snapshot) {
    let work = |communicator: Option<Arc<dyn Communicator>>| {
        let rank = communicator.as_ref().map_or(0, |communicator| communicator.rank());
        let checkpoints = Checkpoints::new(directory, 2).unwrap();
        let builder = case.builder(&Way::default(), communicator).with_checkpoints(checkpoints);
        let mut trainer: Trainer<Classify> = builder.build(&Device::flex(), &case.batch(0)).unwrap();
        let _ = trainer.resume().unwrap();
        let notes = noted(&mut trainer, told, move |report| report.step == stop);
        let finish = trainer.fit(&loader(rank, replicas)).unwrap();
        assert_eq!(finish, if stop < STEPS { Finish::Stopped } else { Finish::Complete });
        (notes.take(), Snapshot::on_first(&trainer))
    };
    let (notes, snapshot) = match replicas {
        1 => work(None),
        replicas => on_all(replicas, |communicator| work(Some(communicator))).remove(0),
    };
    (notes, snapshot.unwrap())
}

/// The laws change the number of replicas in every pair; here each replica's part comes from a loader that shuffles.
#[test]
fn a_run_over_a_loader_goes_on_with_another_number_of_replicas() {
    let _turn = turn();
    let (case, folder) = (case(OptimizerConfig::adamw()), temporary());
    let at = |name: &str| folder.path().join(name);
    // Three micro-batches: of one replica, or one on each of three. A short batch is cut in other places by three.
    let whole = [1, 3].map(|count| fit(&case, count, &at(&format!("whole {count}")), STEPS));
    assert_eq!(whole[0].0[..3], whole[1].0[..3]);
    for (from, to, expected) in [(1, 3, &whole[1]), (3, 1, &whole[0])] {
        let directory = at(&format!("{from} to {to}"));
        // Interrupted within an epoch, after two full batches.
        let (mut seen, _) = fit(&case, from, &directory, 2);
        let (rest, got) = fit(&case, to, &directory, STEPS);
        seen.extend(rest);
        assert_eq!(seen, expected.0, "from {from} to {to}");
        got.assert_same(&expected.1, &format!("from {from} to {to}"));
    }
}

#[test]
fn each_replica_holds_its_share_of_the_state() {
    let _turn = turn();
    for optimizer in [OptimizerConfig::adamw(), OptimizerConfig::sgd()] {
        // Layers of the same size, so that shares can be even.
        let settings = Settings { micro_batch: Some(2), ..settings(optimizer) };
        // Bytes of the state before the last of three steps.
        let state = |sharded: bool, replica: Option<(usize, Arc<dyn Communicator>)>| {
            let bytes = Rc::new(Cell::new(0));
            let seen = bytes.clone();
            let look = move |_, _: &Net, optimizer: &ModuleOptimizer| {
                seen.set(optimizer.into_bytes().unwrap().len());
                Ok::<_, Infallible>(None)
            };
            let mut builder = builder(Ids::net(), |_| Net::new(&[32; 9], false, 0.0), &settings).with_model_edit(look);
            if sharded {
                builder = builder.with_sharded_optimizer(true);
            }
            let mut own = 0..8;
            if let Some((replicas, communicator)) = replica {
                let rank = communicator.rank();
                (own, builder) = (rank * 8 / replicas..(rank + 1) * 8 / replicas, builder.with_replicas(communicator));
            }
            let mut trainer = Watched::build(builder, &batch(0, 8));
            for step in 0..3 {
                let _ = trainer.step(&batch(step, 8)[own.clone()].to_vec()).unwrap();
            }
            bytes.get()
        };
        let whole = state(false, None);
        for replicas in 2..=4 {
            let bytes = |sharded| on_all(replicas, |communicator| state(sharded, Some((replicas, communicator))));
            // The ids of parameters are of different lengths as text.
            let all_of_it = |bytes: &usize| bytes.abs_diff(whole) < whole / 50;
            assert!(bytes(false).iter().all(all_of_it), "each has all of it");
            let shares = bytes(true);
            let most = *shares.iter().max().unwrap();
            // Names and alignment add some bytes to each record; the last layer is smaller.
            assert!((most as f64) < 1.15 * whole as f64 / replicas as f64, "{optimizer:?}: {shares:?} of {whole}");
            assert!(shares.iter().sum::<usize>() as f64 > 0.95 * whole as f64, "{optimizer:?}: {shares:?} of {whole}");
        }
    }
}

#[test]
fn replicas_that_find_other_checkpoints_end() {
    let _turn = turn();
    let case = case(OptimizerConfig::adamw());
    let folder = temporary();
    for (name, stop) in [("a", 4), ("b", 5)] {
        let _ = fit(&case, 1, &folder.path().join(name), stop);
    }
    // The steps of another run with equal settings.
    let other = case.clone().with(|settings| Settings { max_norm: None, ..settings });
    let _ = fit(&other, 1, &folder.path().join("c"), 4);
    let damaged = folder.path().join("d");
    let _ = fit(&case, 1, &damaged, 4);
    for saved in Checkpoints::new(&damaged, 2).unwrap().list().unwrap() {
        fs::write(saved.join("model.bpk"), "nothing").unwrap();
    }
    let cases = [
        ("b", "its newest checkpoint is step-00000005, expected step-00000004"),
        ("c", "its checksum of the checkpoint's manifest is"),
        ("d", "cannot load checkpoint"),
        ("none", "its newest checkpoint is none"),
    ];
    for (second, expected) in cases {
        let errors = on_all(2, |communicator| {
            let name = ["a", second][communicator.rank()];
            let checkpoints = Checkpoints::new(folder.path().join(name), 2).unwrap();
            let builder = case.builder(&Way::default(), Some(communicator)).with_checkpoints(checkpoints);
            let mut trainer: Trainer<Classify> = builder.build(&Device::flex(), &case.batch(0)).unwrap();
            trainer.resume().unwrap_err()
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let text = error.to_string();
            assert!(text.contains(expected), "{second}, replica {rank}: {text}");
            let own = rank == 1 && second == "d";
            assert!(matches!(error, Error::Replica { rank: 1, .. }) || own, "{second}, replica {rank}: {text}");
        }
    }
}

#[test]
fn replicas_with_other_settings_are_refused() {
    let _turn = turn();
    let case = case(OptimizerConfig::adamw());
    let seeds = [3, 3, 4];
    let errors = on_all(3, |communicator| {
        let seed = seeds[communicator.rank()];
        let builder = case.builder(&Way::default(), Some(communicator)).with_seed(seed);
        builder.build(&Device::flex(), &case.batch(0)).err().unwrap().to_string()
    });
    for error in errors {
        assert_eq!(error, "replica 2 failed: its seed is 4, expected 3 as on replica 0");
    }
    // Parameters that do not follow from the seed.
    let errors = on_all(2, |communicator| {
        let rank = communicator.rank();
        let init = move |_: &Device| Net::new(&[8, 16, 16], false, 0.0).map(&mut Shift(rank as f64));
        let builder = Trainer::builder(Ids::net(), init).with_seed(3).with_prediction(false);
        builder.with_replicas(communicator).build(&Device::flex(), &vec![0; SIZE]).err().unwrap().to_string()
    });
    for error in errors {
        assert!(error.starts_with("replica 1 failed: its checksum of the initial parameters is "), "{error}");
    }
}

/// Adds a number to all parameters.
struct Shift(f64);

impl ModuleMapper for Shift {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| (value + self.0).detach().require_grad())
    }
}
