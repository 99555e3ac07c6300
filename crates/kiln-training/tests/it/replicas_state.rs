//! The optimizer's state of replicas, whole or divided: its bytes, checkpoints, and runs that continue with another number of replicas.

use std::cell::RefCell;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use burn::tensor::Device;
use kiln_data::{BatchPlan, Error as DataError, Loader, LoaderConfig, Order, Replica};
use kiln_parallel::Communicator;
use kiln_training::{Checkpoints, Error, Event, Finish, Intervals, OptimizerConfig, Trainer};

use crate::group::{Case, MICRO, on_replicas};
use crate::support::{Ids, Net, Settings, Snapshot, numbers, turn};

/// Batches of 6 samples over all replicas, the last one of an epoch short.
const SIZE: usize = 6;
const SAMPLES: usize = 22;
const STEPS: u64 = 9;

/// The part of replica `rank` of `count`.
fn loader(
    rank: usize,
    count: usize,
    load: impl Fn(&BatchPlan) -> Result<Vec<usize>, DataError> + Send + Sync + 'static,
) -> Loader<Vec<usize>> {
    let config = LoaderConfig::new(SIZE)
        .with_order(Order::Shuffled { seed: 5 })
        .with_replica(Replica::new(rank, count).unwrap());
    Loader::new(SAMPLES, config, load).unwrap()
}

/// A run that saves after every second step. With 1, 2 and 3 replicas it has the same numbers. Without dropout and batch-norm they differ
/// only by the rounding of sums, and sums of equal micro-batches are equal.
fn case(optimizer: OptimizerConfig) -> Case<Ids<Net>> {
    let settings = |settings| Settings { steps: STEPS, every: Intervals::default().with_checkpoint(2), ..settings };
    Case::net(optimizer).with(settings)
}

/// How a run is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Division {
    replicas: usize,
    shards: bool,
}

/// Trains until `stop` steps were taken, from the newest checkpoint on; the numbers of the steps, and everything at the end.
fn fit(case: &Case<Ids<Net>>, division: Division, directory: &Path, stop: u64) -> (Vec<String>, Snapshot) {
    let work = |communicator: Option<Arc<dyn Communicator>>| {
        let rank = communicator.as_ref().map_or(0, |communicator| communicator.rank());
        let checkpoints = Checkpoints::new(directory, 2).unwrap();
        let builder = case.builder(communicator, division.shards).with_checkpoints(checkpoints);
        let mut trainer: Trainer<Ids<Net>> = builder.build(&Device::flex(), &vec![0; SIZE]).unwrap();
        let _ = trainer.resume().unwrap();
        let notes = Rc::new(RefCell::new(vec![]));
        let noted = notes.clone();
        trainer.observe(move |event| match event {
            Event::Step(report) => {
                noted.borrow_mut().push(numbers(report));
                // Only the first replica asks.
                if report.step == stop && rank == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
            _ => ControlFlow::Continue(()),
        });
        let finish = trainer.fit(&loader(rank, division.replicas, |plan| Ok(plan.ids.clone()))).unwrap();
        assert_eq!(finish, if stop < STEPS { Finish::Stopped } else { Finish::Complete });
        assert_eq!(trainer.state().step, stop.min(STEPS), "all stop at the same step");
        (notes.take(), Snapshot::on_first(&trainer))
    };
    let (notes, snapshot) = match division.replicas {
        1 => work(None),
        replicas => {
            let all = on_replicas(replicas, |communicator| work(Some(communicator)));
            let mut all: Vec<_> = all.into_iter().map(|ended| ended.unwrap()).collect();
            assert!(all.iter().all(|(notes, _)| *notes == all[0].0), "all replicas report the same");
            all.remove(0)
        }
    };
    (notes, snapshot.unwrap())
}

#[test]
fn a_run_goes_on_with_any_number_of_replicas_sharded_or_not() {
    let _turn = turn();
    let divisions: Vec<Division> =
        (1..=3).flat_map(|replicas| [false, true].map(|shards| Division { replicas, shards })).collect();
    for optimizer in [OptimizerConfig::adamw(), OptimizerConfig::sgd()] {
        // Three micro-batches of two samples, or fewer in the short batches: of one replica, or one on each of three.
        let case = case(optimizer);
        let folder = tempfile::tempdir().unwrap();
        let alone = Division { replicas: 1, shards: false };
        let three = Division { replicas: 3, shards: false };
        let (whole, end) = fit(&case, alone, &folder.path().join("whole"), STEPS);
        // The loader gives the smaller part first, so that a short batch is cut in other places: full batches are the same.
        let (of_three, end_of_three) = fit(&case, three, &folder.path().join("three"), STEPS);
        assert_eq!(of_three[..3], whole[..3]);
        for from in &divisions {
            for to in &divisions {
                let context = format!("{optimizer:?}, from {from:?} to {to:?}");
                let directory = folder.path().join(&context);
                // Interrupted within an epoch, after two full batches.
                let (mut seen, _) = fit(&case, *from, &directory, 2);
                // What was saved is the same for every division of the same micro-batches.
                let (rest, got) = fit(&case, *to, &directory, STEPS);
                seen.extend(rest);
                let expected = match (from.replicas, to.replicas) {
                    (1 | 3, 1) => (&whole, &end),
                    (1 | 3, 3) => (&of_three, &end_of_three),
                    // Two replicas have three samples each, in two micro-batches.
                    _ => {
                        assert_eq!(seen.len(), STEPS as usize, "{context}");
                        continue;
                    }
                };
                assert_eq!(seen, *expected.0, "{context}");
                got.assert_same(expected.1, &context);
            }
        }
        // Two replicas, however the state is divided.
        let two = |shards| Division { replicas: 2, shards };
        let (of_two, end_of_two) = fit(&case, two(false), &folder.path().join("two"), STEPS);
        for (from, to) in [(false, false), (false, true), (true, false), (true, true)] {
            let context = format!("{optimizer:?}, two replicas, sharded: {from}, then {to}");
            let directory = folder.path().join(&context);
            let (mut seen, _) = fit(&case, two(from), &directory, 3);
            let (rest, got) = fit(&case, two(to), &directory, STEPS);
            seen.extend(rest);
            assert_eq!(seen, of_two, "{context}");
            got.assert_same(&end_of_two, &context);
        }
    }
}

#[test]
fn each_replica_holds_its_share_of_the_state() {
    let _turn = turn();
    let batches: Vec<Vec<usize>> = (0..3).map(|at| (4 * MICRO * at..4 * MICRO * (at + 1)).collect()).collect();
    for optimizer in [OptimizerConfig::adamw(), OptimizerConfig::sgd()] {
        // Layers of the same size, so that shares can be even.
        let init = |_: &Device| Net::new(&[32; 9], false, 0.0);
        let case = Case { init, ..Case::net(optimizer) };
        let whole = case.alone(&batches).state_bytes;
        for replicas in 2..=4 {
            let bytes =
                |shards| case.on(replicas, shards, &batches).iter().map(|ended| ended.state_bytes).collect::<Vec<_>>();
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
    let folder = tempfile::tempdir().unwrap();
    let alone = Division { replicas: 1, shards: false };
    for (name, stop) in [("a", 4), ("b", 5)] {
        let _ = fit(&case, alone, &folder.path().join(name), stop);
    }
    // The steps of another run with equal settings.
    let other =
        Case::net(OptimizerConfig::adamw()).with(|settings| Settings { steps: STEPS, max_norm: None, ..settings });
    let _ = fit(&other, alone, &folder.path().join("c"), 4);
    let damaged = folder.path().join("d");
    let _ = fit(&case, alone, &damaged, 4);
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
        let errors = on_replicas(2, |communicator| {
            let name = ["a", second][communicator.rank()];
            let checkpoints = Checkpoints::new(folder.path().join(name), 2).unwrap();
            let builder = case.builder(Some(communicator), false).with_checkpoints(checkpoints);
            let mut trainer: Trainer<Ids<Net>> = builder.build(&Device::flex(), &vec![0; SIZE]).unwrap();
            trainer.resume().unwrap_err()
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let error = error.unwrap();
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
    let seeds = [3, 3, 4];
    let errors = on_replicas(3, |communicator| {
        let seed = seeds[communicator.rank()];
        let case = case(OptimizerConfig::adamw());
        let built: Result<Trainer<Ids<Net>>, Error> =
            case.builder(Some(communicator), false).with_seed(seed).build(&Device::flex(), &vec![0; SIZE]);
        built.err().unwrap().to_string()
    });
    for error in errors {
        assert_eq!(error.unwrap(), "replica 2 failed: its seed is 4, expected 3 as on replica 0");
    }
    // Parameters that do not follow from the seed.
    let errors = on_replicas(2, |communicator| {
        let case = case(OptimizerConfig::adamw());
        let rank = communicator.rank();
        let init = move |_: &Device| {
            let net = Net::new(&[8, 16, 16], false, 0.0);
            burn::module::Module::map(net, &mut Shift(rank as f64))
        };
        let builder = Trainer::builder((case.task)(), init).with_seed(3).with_prediction(false);
        builder.with_replicas(communicator).build(&Device::flex(), &vec![0; SIZE]).err().unwrap().to_string()
    });
    for error in errors {
        let error = error.unwrap();
        assert!(error.starts_with("replica 1 failed: its checksum of the initial parameters is "), "{error}");
    }
}

/// Adds a number to all parameters.
struct Shift(f64);

impl burn::module::ModuleMapper for Shift {
    fn map_float<const D: usize>(
        &mut self,
        param: burn::module::Param<burn::tensor::Tensor<D>>,
    ) -> burn::module::Param<burn::tensor::Tensor<D>> {
        param.map(|value| (value + self.0).detach().require_grad())
    }
}
