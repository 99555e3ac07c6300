//! Memory that runs out on one replica: all try again with equal settings, and the numbers are those of a run that began with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use burn::tensor::Device;
use kiln_parallel::Communicator;
use kiln_recovery::{Failure, Injector, Kind, Ladder, Shrink};
use kiln_training::{Boundary, Error, Finish, OptimizerConfig, StepReport, Trainer};

use crate::group::{Case, Ended, MICRO, all_numbers, assert_all_same, model_of, on_replicas, part};
use crate::support::{Ids, Net, Settings, Snapshot, Watched, inject, reclaim, recovery, turn};

const REPLICAS: usize = 2;
const STEPS: usize = 2;
/// Samples of a batch. The last batch is shorter: the last replica has a single sample of it.
const SIZE: usize = 2 * MICRO * REPLICAS;

fn batches() -> Vec<Vec<usize>> {
    vec![(0..SIZE).collect(), (SIZE..2 * SIZE - MICRO - 1).collect()]
}

/// A run in which boundary number `call` of the replica `victim` fails, or none. Returns the number of its boundaries as well.
fn run(
    case: &Case<Ids<Net>>,
    shards: bool,
    start: usize,
    ladder: fn() -> Ladder,
    victim: usize,
    call: u64,
) -> (Vec<Ended>, u64) {
    let injectors = std::sync::Mutex::new(vec![]);
    let ended = case.watched(REPLICAS, shards, &batches(), |rank, trainer| {
        trainer.set_recovery(Some(recovery(SIZE, start, ladder())));
        if rank == victim {
            injectors.lock().unwrap().push(inject(trainer, Injector::calls([call])));
        }
    });
    let injector = injectors.into_inner().unwrap().remove(0);
    assert_eq!(injector.injected(), u64::from(call <= injector.seen()), "call {call}");
    (ended, injector.seen())
}

const NEVER: u64 = u64::MAX;

#[test]
fn a_failure_at_any_boundary_of_one_replica_changes_nothing() {
    let _turn = turn();
    for (optimizer, shards) in
        [(OptimizerConfig::adamw(), false), (OptimizerConfig::adamw(), true), (OptimizerConfig::sgd(), true)]
    {
        let case = Case::net(optimizer);
        for victim in 0..REPLICAS {
            let (expected, calls) = run(&case, shards, MICRO, reclaim, victim, NEVER);
            // Copy-in, forward, backward and accumulate of each micro-batch, the probe, the update, and the hand-out.
            let micro_batches = if victim == 0 { 4 } else { 3 };
            assert_eq!(calls, 4 * micro_batches + STEPS as u64 * (2 + u64::from(shards)), "sharded: {shards}");
            for call in 1..=calls {
                let context = format!("{optimizer:?}, sharded: {shards}, replica {victim} fails at call {call}");
                let (ended, _) = run(&case, shards, MICRO, reclaim, victim, call);
                assert_all_same(&ended, &expected[0], &context);
                let failures = |ended: &Ended| ended.reports.iter().map(|report| report.failures).sum::<usize>();
                assert_eq!(failures(&ended[victim]), 1, "{context}");
                // An update is repeated by the replica alone; everything else by all.
                let counts = ended.iter().map(failures).sum::<usize>();
                assert!(
                    counts == REPLICAS || counts == 1 && updates(victim, shards).contains(&call),
                    "{context}: {counts}"
                );
            }
        }
    }
}

/// The calls at which a run without failures updates parameters.
fn updates(victim: usize, shards: bool) -> [u64; STEPS] {
    let first = 4 * 2 + 2;
    let last = 4 * if victim == 0 { 2 } else { 1 } + 2;
    [first, first + u64::from(shards) + last]
}

#[test]
fn a_replica_that_lacks_memory_makes_all_cut_smaller() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::adamw());
    let shrink = || Ladder::new().with(Shrink);
    let (expected, _) = run(&case, false, MICRO / 2, shrink, 0, NEVER);
    for shards in [false, true] {
        for victim in 0..REPLICAS {
            // Every boundary of the passes of the first step.
            for call in 1..=4 * 2 + 1 {
                let context = format!("sharded: {shards}, replica {victim} fails at call {call}");
                let (ended, _) = run(&case, shards, MICRO, shrink, victim, call);
                assert_all_same(&ended, &expected[0], &context);
                for replica in &ended {
                    let counts: Vec<_> =
                        replica.reports.iter().map(|report| (report.failures, report.micro_batches)).collect();
                    assert_eq!(counts, [(1, SIZE), (0, SIZE - MICRO - 1)], "{context}");
                }
            }
        }
    }
}

/// Parameters after each step are the same on all replicas, also while they try again.
#[test]
fn any_set_of_failures_on_all_replicas_leaves_the_run_as_it_was() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::adamw());
    let batches: Vec<Vec<usize>> = (0..4).map(|at| (SIZE * at..SIZE * (at + 1)).collect()).collect();
    let run = |chance: f64, seed: u64, shards: bool| {
        let ended = on_replicas(REPLICAS, |communicator| {
            let rank = communicator.rank();
            let mut trainer = Watched::build(case.builder(Some(communicator), shards), &batches[0]);
            trainer.set_recovery(Some(recovery(SIZE, MICRO, reclaim())));
            let faults = inject(&mut trainer, Injector::chance(chance, 7 * seed + rank as u64).unwrap());
            let mut models = vec![];
            let mut reports: Vec<StepReport> = vec![];
            for batch in &batches {
                reports.push(trainer.step(&part(batch, rank, REPLICAS)).unwrap());
                models.push(model_of(trainer.model()));
            }
            (models, reports, Snapshot::on_first(&trainer), faults.injected())
        });
        ended.into_iter().map(|ended| ended.unwrap()).collect::<Vec<_>>()
    };
    let expected = run(0.0, 0, false);
    let mut injected = 0;
    for seed in 0..16 {
        // An update that fails at every one of its tries would end the run.
        let ended = run(0.05, seed, seed % 2 == 0);
        for (models, reports, ..) in &ended {
            assert_eq!(all_numbers(reports), all_numbers(&expected[0].1), "seed {seed}");
            assert!(*models == ended[0].0, "seed {seed}: parameters differ after a step");
        }
        ended[0].2.as_ref().unwrap().assert_same(expected[0].2.as_ref().unwrap(), &format!("seed {seed}"));
        injected += ended.iter().map(|ended| ended.3).sum::<u64>();
    }
    assert!(injected > 50, "{injected}");
}

/// Parts of 4 and 5 samples: a replica does not cut its part because that of another is smaller.
#[test]
fn uneven_parts_are_one_micro_batch_each() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::sgd());
    let parts = [vec![0, 1, 2, 3], vec![4, 5, 6, 7, 8]];
    let reports = on_replicas(REPLICAS, |communicator| {
        let part = &parts[communicator.rank()];
        let mut trainer = Watched::build(case.builder(Some(communicator), false), &vec![0; 9]);
        trainer.set_recovery(Some(recovery(9, 9, Ladder::standard())));
        trainer.step(part).unwrap()
    });
    assert!(reports.into_iter().all(|report| report.unwrap().micro_batches == REPLICAS));
}

/// All replicas learn of the failure of one replica, whatever it is.
#[test]
fn what_one_replica_learns_all_learn() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::adamw());
    let states = on_replicas(REPLICAS, |communicator| {
        let rank = communicator.rank();
        let mut trainer = Watched::build(case.builder(Some(communicator), false), &vec![0; SIZE]);
        trainer.set_recovery(Some(recovery(SIZE, SIZE, Ladder::standard())));
        let calls = AtomicUsize::new(0);
        trainer.watch(move |boundary| {
            match boundary == Boundary::Forward && rank == 1 && calls.fetch_add(1, Relaxed) == 2 {
                // A buffer that does not fit into an empty device.
                true => Err(Failure::new(Kind::TooBig, "one buffer").with_bytes(1 << 40)),
                false => Ok(()),
            }
        });
        for at in 0..6 {
            let batch: Vec<usize> = (SIZE * at..SIZE * (at + 1)).collect();
            let _ = trainer.step(&part(&batch, rank, REPLICAS)).unwrap();
        }
        trainer.recovery().unwrap().state()
    });
    let states: Vec<_> = states.into_iter().map(|state| state.unwrap()).collect();
    assert_eq!(states[0], states[1]);
}

#[test]
fn when_nothing_fits_on_one_replica_all_end_with_a_report_that_names_it() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::adamw());
    let errors = on_replicas(3, |communicator| {
        let rank = communicator.rank();
        let mut trainer = Watched::build(case.builder(Some(communicator), true), &vec![0; 6]);
        trainer.set_recovery(Some(recovery(6, MICRO, Ladder::standard())));
        trainer.watch(move |boundary| match boundary == Boundary::Backward && rank == 1 {
            true => Err(Failure::new(Kind::OutOfMemory, "somebody else has all of it")),
            false => Ok(()),
        });
        let before = model_of(trainer.model());
        let error = trainer.step(&vec![rank, rank + 3]).unwrap_err();
        assert!(model_of(trainer.model()) == before, "as before the step");
        error
    });
    for error in errors {
        let error = error.unwrap();
        let text = error.to_string();
        assert!(matches!(error, Error::Exhausted { step: 1, .. }), "{text}");
        assert!(text.contains("on replica 1: somebody else has all of it"), "{text}");
    }
}

/// Without a message, the others would wait for minutes: the error of the first one to end quotes a lack of memory.
#[test]
fn a_replica_that_does_not_try_again_ends_all_at_once() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::adamw());
    let errors = on_replicas(2, |communicator: Arc<dyn Communicator>| {
        let rank = communicator.rank();
        let builder = case.builder(Some(communicator), false).with_guard(move |boundary| {
            match boundary == Boundary::Forward && rank == 1 {
                true => Err(Failure::new(Kind::OutOfMemory, "none left")),
                false => Ok(()),
            }
        });
        let mut trainer: Trainer<Ids<Net>> = builder.build(&Device::flex(), &vec![0; SIZE]).unwrap();
        if rank == 0 {
            let search = recovery(SIZE, MICRO, Ladder::standard()).with_patience(Default::default());
            let paused = |_| panic!("it pauses for a replica that has left");
            trainer.set_recovery(Some(search.with_pause(paused)));
        }
        trainer.step(&vec![rank, rank + 2]).unwrap_err()
    });
    let errors: Vec<_> = errors.into_iter().map(|error| error.unwrap()).collect();
    assert!(
        matches!(&errors[1], Error::Memory(failure) if failure.message().contains("on replica 1")),
        "{}",
        errors[1]
    );
    assert!(matches!(&errors[0], Error::Parallel(kiln_parallel::Error::Left { rank: 1, .. })), "{}", errors[0]);
}

/// The others wait for a replica with an unfinished update, until it is given up.
#[test]
fn an_update_that_stays_unfinished_ends_the_run_on_all_when_its_replica_is_dropped() {
    let _turn = turn();
    for (boundary, shards) in UNFINISHED {
        let case = Case::net(OptimizerConfig::adamw());
        let errors = on_replicas(2, |communicator: Arc<dyn Communicator>| {
            let rank = communicator.rank();
            let mut trainer = Watched::build(case.builder(Some(communicator), shards), &vec![0; SIZE]);
            trainer.set_recovery(Some(recovery(SIZE, MICRO, Ladder::standard())));
            trainer.watch(move |at| match at == boundary && rank == 1 {
                true => Err(Failure::new(Kind::OutOfMemory, "none left")),
                false => Ok(()),
            });
            let first = trainer.step(&vec![rank, rank + 2]);
            // Where each replica updates all, the others have finished the step, and learn of it in the next one.
            let own = first.as_ref().is_ok_and(|_| rank == 0 && !shards);
            let error = if own { trainer.step(&vec![rank, rank + 2]).unwrap_err() } else { first.unwrap_err() };
            assert!(trainer.step(&vec![rank, rank + 2]).is_err());
            error
        });
        let errors: Vec<_> = errors.into_iter().map(|error| error.unwrap()).collect();
        assert!(matches!(errors[1], Error::Unfinished { step: 1, .. }), "{boundary:?}: {}", errors[1]);
        match boundary {
            Boundary::HandOut => assert!(matches!(errors[0], Error::Unfinished { .. }), "{}", errors[0]),
            _ => assert!(
                matches!(errors[0], Error::Parallel(kiln_parallel::Error::Left { rank: 1, .. })),
                "{}",
                errors[0]
            ),
        }
    }
}

/// Where an update can stay unfinished, and whether the optimizer's state is divided.
const UNFINISHED: [(Boundary, bool); 3] =
    [(Boundary::Update, false), (Boundary::Update, true), (Boundary::HandOut, true)];

/// By `fit`, and by `step` and `complete_update`.
#[test]
fn an_update_that_is_unfinished_on_one_replica_goes_on_when_there_is_room_for_it() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::adamw()).with(|settings| Settings { steps: 4, ..settings });
    let run = |short: Option<(Boundary, bool)>, by_hand: bool| {
        let shards = short.is_some_and(|(_, shards)| shards);
        let ended = on_replicas(REPLICAS, |communicator: Arc<dyn Communicator>| {
            let rank = communicator.rank();
            let mut trainer = Watched::build(case.builder(Some(communicator), shards), &vec![0; SIZE]);
            trainer.set_recovery(Some(recovery(SIZE, MICRO, Ladder::standard())));
            let (probes, lacks) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(true)));
            let lacking = lacks.clone();
            trainer.watch(move |at| {
                // In the third step.
                let step = probes.fetch_add(usize::from(at == Boundary::Probe), Relaxed);
                match rank == 1 && step >= 3 && Some(at) == short.map(|short| short.0) && lacking.load(Relaxed) {
                    true => Err(Failure::new(Kind::OutOfMemory, "none left")),
                    false => Ok(()),
                }
            });
            let batches: Vec<Vec<usize>> =
                (0..2).map(|at| part(&(SIZE * at..SIZE * (at + 1)).collect(), rank, REPLICAS)).collect();
            let mut unfinished = 0;
            match by_hand {
                false => loop {
                    match trainer.fit(&batches) {
                        Ok(finish) => break assert_eq!(finish, Finish::Complete),
                        Err(Error::Unfinished { step: 3, .. }) => unfinished += 1,
                        Err(error) => panic!("replica {rank}: {error}"),
                    }
                    lacks.store(false, Relaxed);
                },
                true => {
                    for batch in batches.iter().cycle().take(4) {
                        let mut report = trainer.step(batch);
                        while let Err(Error::Unfinished { step: 3, .. }) = report {
                            unfinished += 1;
                            lacks.store(false, Relaxed);
                            report = trainer.complete_update();
                        }
                        let _ = report.unwrap_or_else(|error| panic!("replica {rank}: {error}"));
                    }
                }
            }
            (unfinished, model_of(trainer.model()), trainer.state().step)
        });
        ended.into_iter().map(|ended| ended.unwrap()).collect::<Vec<_>>()
    };
    let expected = run(None, false);
    for (boundary, shards) in UNFINISHED {
        for by_hand in [false, true] {
            let context = format!("{boundary:?}, sharded: {shards}, by hand: {by_hand}");
            let ended = run(Some((boundary, shards)), by_hand);
            let counts: Vec<_> = ended.iter().map(|ended| ended.0).collect();
            assert_eq!(counts, [usize::from(boundary == Boundary::HandOut), 1], "{context}");
            for (_, model, step) in &ended {
                assert!(*model == expected[0].1, "{context}: the parameters differ");
                assert_eq!(*step, 4, "{context}");
            }
        }
    }
}

/// One replica could take its whole part at once, and the other one could not.
#[test]
fn what_is_learned_is_about_the_setting_that_the_replicas_agreed_on() {
    let _turn = turn();
    let case = Case::net(OptimizerConfig::adamw());
    let states = on_replicas(REPLICAS, |communicator| {
        let rank = communicator.rank();
        let starts = [2 * MICRO, MICRO];
        let mut trainer = Watched::build(case.builder(Some(communicator), false), &vec![0; SIZE]);
        let recovery = recovery(SIZE, starts[rank], Ladder::standard()).with_peak(move || Some(1000 + rank as u64));
        trainer.set_recovery(Some(recovery));
        for at in 0..3 {
            let batch: Vec<usize> = (SIZE * at..SIZE * (at + 1)).collect();
            let report = trainer.step(&part(&batch, rank, REPLICAS)).unwrap();
            assert_eq!(report.micro_batches, 2 * REPLICAS);
        }
        trainer.recovery().unwrap().state()
    });
    for (rank, state) in states.into_iter().enumerate() {
        let state = state.unwrap();
        let known = state.sizes.buckets.values().next().unwrap();
        assert_eq!((known.fits, &known.samples), (Some(MICRO), &vec![(MICRO, 1000 + rank as u64)]), "replica {rank}");
        assert!(state.shortages.is_empty(), "replica {rank}: {:?}", state.shortages);
    }
}
