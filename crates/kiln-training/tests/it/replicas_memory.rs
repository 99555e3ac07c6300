//! Memory that runs out on one replica: all try again with equal settings, and the numbers are those of a run that began with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use burn::tensor::Device;
use kiln_parallel::Communicator;
use kiln_recovery::{Failure, Injector, Kind, Ladder, Shrink};
use kiln_training::{Boundary, Error, Finish, OptimizerConfig, StepReport, Trainer};

use crate::case::{Case, Classify, Make, Parts, Samples, Way, all_numbers, bytes_of, on_all, part};
use crate::support::{Snapshot, Watched, inject, reclaim, recovery, turn};

/// Samples of a micro-batch.
const MICRO: usize = 2;
const REPLICAS: usize = 2;
const SIZE: usize = 2 * MICRO * REPLICAS;

/// Batch-norm, and dropout.
fn case() -> Case {
    let make = Make::Chain(Parts { dropout: 0.2, ..Parts::new(1) });
    Case::new(make, OptimizerConfig::adamw(), SIZE, MICRO)
}

fn sharded(sharded: bool) -> Way {
    Way { sharded, ..Way::default() }
}

/// A step fails at every boundary before its update. (The laws repeat the step as it was.)
#[test]
fn a_replica_that_lacks_memory_makes_all_cut_smaller() {
    let _turn = turn();
    // The last batch is shorter: the last replica has a single sample of it.
    let case = case();
    let batches = [case.batch(0), Samples::of(SIZE..2 * SIZE - MICRO - 1)];
    let run = |shards, start, victim, call: Option<u64>| {
        on_all(REPLICAS, |communicator| {
            let rank = communicator.rank();
            let mut trainer = Watched::build(case.builder(&sharded(shards), Some(communicator)), &batches[0]);
            trainer.set_recovery(Some(recovery(SIZE, start, Ladder::new().with(Shrink))));
            inject(&mut trainer, Injector::calls(call.filter(|_| rank == victim)));
            let step = |batch| trainer.step(&part(batch, MICRO, rank, REPLICAS)).unwrap();
            let reports = batches.iter().map(step).collect::<Vec<_>>();
            (reports, bytes_of(trainer.model()), Snapshot::on_first(&trainer))
        })
    };
    let expected = run(false, MICRO / 2, 0, None).remove(0);
    for shards in [false, true] {
        for victim in 0..REPLICAS {
            for call in 1..=4 * 2 + 1 {
                let context = format!("sharded: {shards}, replica {victim} fails at call {call}");
                for (reports, model, snapshot) in run(shards, MICRO, victim, Some(call)) {
                    assert_eq!(all_numbers(&reports), all_numbers(&expected.0), "{context}");
                    assert!(model == expected.1, "{context}: a model differs");
                    if let Some(snapshot) = snapshot {
                        snapshot.assert_same(expected.2.as_ref().unwrap(), &context);
                    }
                    let counts: Vec<_> = reports.iter().map(|report| (report.failures, report.micro_batches)).collect();
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
    let case = case();
    let batches: Vec<Samples> = (0..4).map(|at| case.batch(at)).collect();
    let run = |chance: f64, seed: u64, shards: bool| {
        on_all(REPLICAS, |communicator| {
            let rank = communicator.rank();
            let mut trainer = Watched::build(case.builder(&sharded(shards), Some(communicator)), &batches[0]);
            trainer.set_recovery(Some(recovery(SIZE, MICRO, reclaim())));
            let faults = inject(&mut trainer, Injector::chance(chance, 7 * seed + rank as u64).unwrap());
            let mut models = vec![];
            let mut reports: Vec<StepReport> = vec![];
            for batch in &batches {
                reports.push(trainer.step(&part(batch, MICRO, rank, REPLICAS)).unwrap());
                models.push(bytes_of(trainer.model()));
            }
            (models, reports, Snapshot::on_first(&trainer), faults.injected())
        })
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
    let case = case();
    let parts = [Samples::of(0..4), Samples::of(4..9)];
    let reports = on_all(REPLICAS, |communicator| {
        let part = &parts[communicator.rank()];
        let mut trainer = Watched::build(case.builder(&sharded(false), Some(communicator)), &Samples::of(0..9));
        trainer.set_recovery(Some(recovery(9, 9, Ladder::standard())));
        trainer.step(part).unwrap()
    });
    assert!(reports.into_iter().all(|report| report.micro_batches == REPLICAS));
}

/// All replicas learn of the failure of one replica, whatever it is.
#[test]
fn what_one_replica_learns_all_learn() {
    let _turn = turn();
    let case = case();
    let states = on_all(REPLICAS, |communicator| {
        let rank = communicator.rank();
        let mut trainer = Watched::build(case.builder(&sharded(false), Some(communicator)), &case.batch(0));
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
            let batch = case.batch(at);
            let _ = trainer.step(&part(&batch, MICRO, rank, REPLICAS)).unwrap();
        }
        trainer.recovery().unwrap().state()
    });
    assert_eq!(states[0], states[1]);
}

#[test]
fn when_nothing_fits_on_one_replica_all_end_with_a_report_that_names_it() {
    let _turn = turn();
    let case = case();
    let errors = on_all(3, |communicator| {
        let rank = communicator.rank();
        let mut trainer = Watched::build(case.builder(&sharded(true), Some(communicator)), &Samples::of(0..6));
        trainer.set_recovery(Some(recovery(6, MICRO, Ladder::standard())));
        trainer.watch(move |boundary| match boundary == Boundary::Backward && rank == 1 {
            true => Err(Failure::new(Kind::OutOfMemory, "somebody else has all of it")),
            false => Ok(()),
        });
        let before = bytes_of(trainer.model());
        let error = trainer.step(&Samples::of([rank, rank + 3])).unwrap_err();
        assert!(bytes_of(trainer.model()) == before, "as before the step");
        error
    });
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, Error::Exhausted { step: 1, .. }), "{text}");
        assert!(text.contains("on replica 1: somebody else has all of it"), "{text}");
    }
}

/// Without a message, the others would wait for minutes: the error of the first one to end quotes a lack of memory.
#[test]
fn a_replica_that_does_not_try_again_ends_all_at_once() {
    let _turn = turn();
    let case = case();
    let errors = on_all(2, |communicator: Arc<dyn Communicator>| {
        let rank = communicator.rank();
        let builder = case.builder(&sharded(false), Some(communicator)).with_guard(move |boundary| {
            match boundary == Boundary::Forward && rank == 1 {
                true => Err(Failure::new(Kind::OutOfMemory, "none left")),
                false => Ok(()),
            }
        });
        let mut trainer: Trainer<Classify> = builder.build(&Device::flex(), &case.batch(0)).unwrap();
        if rank == 0 {
            let search = recovery(SIZE, MICRO, Ladder::standard()).with_patience(Default::default());
            let paused = |_| panic!("it pauses for a replica that has left");
            trainer.set_recovery(Some(search.with_pause(paused)));
        }
        trainer.step(&Samples::of([rank, rank + 2])).unwrap_err()
    });
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
        let case = case();
        let errors = on_all(2, |communicator: Arc<dyn Communicator>| {
            let rank = communicator.rank();
            let mut trainer = Watched::build(case.builder(&sharded(shards), Some(communicator)), &case.batch(0));
            trainer.set_recovery(Some(recovery(SIZE, MICRO, Ladder::standard())));
            trainer.watch(move |at| match at == boundary && rank == 1 {
                true => Err(Failure::new(Kind::OutOfMemory, "none left")),
                false => Ok(()),
            });
            let first = trainer.step(&Samples::of([rank, rank + 2]));
            // Where each replica updates all, the others have finished the step, and learn of it in the next one.
            let own = first.as_ref().is_ok_and(|_| rank == 0 && !shards);
            let error =
                if own { trainer.step(&Samples::of([rank, rank + 2])).unwrap_err() } else { first.unwrap_err() };
            assert!(trainer.step(&Samples::of([rank, rank + 2])).is_err());
            error
        });
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
    let case = case().steps(4);
    let run = |short: Option<(Boundary, bool)>, by_hand: bool| {
        let shards = short.is_some_and(|(_, shards)| shards);
        on_all(REPLICAS, |communicator: Arc<dyn Communicator>| {
            let rank = communicator.rank();
            let mut trainer = Watched::build(case.builder(&sharded(shards), Some(communicator)), &case.batch(0));
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
            let batches: Vec<_> = (0..2).map(|at| part(&case.batch(at), MICRO, rank, REPLICAS)).collect();
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
            (unfinished, bytes_of(trainer.model()), trainer.state().step)
        })
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
    let case = case();
    let states = on_all(REPLICAS, |communicator| {
        let rank = communicator.rank();
        let starts = [2 * MICRO, MICRO];
        let mut trainer = Watched::build(case.builder(&sharded(false), Some(communicator)), &case.batch(0));
        let recovery = recovery(SIZE, starts[rank], Ladder::standard()).with_peak(move || Some(1000 + rank as u64));
        trainer.set_recovery(Some(recovery));
        for at in 0..3 {
            let batch = case.batch(at);
            let report = trainer.step(&part(&batch, MICRO, rank, REPLICAS)).unwrap();
            assert_eq!(report.micro_batches, 2 * REPLICAS);
        }
        trainer.recovery().unwrap().state()
    });
    for (rank, state) in states.into_iter().enumerate() {
        let known = state.sizes.buckets.values().next().unwrap();
        assert_eq!((known.fits, &known.samples), (Some(MICRO), &vec![(MICRO, 1000 + rank as u64)]), "replica {rank}");
        assert!(state.shortages.is_empty(), "replica {rank}: {:?}", state.shortages);
    }
}
