//! Groups of replicas on threads.

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use kiln_parallel::{Communicator, Error, Local};

use crate::conformance::values::bits;
use crate::conformance::{Case, ENDS, Replica, WORKS};

/// Runs a function on a thread, and fails if it takes longer than two minutes.
fn without_a_hang(name: &str, run: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let (done, ended) = channel::<()>();
        let thread = scope.spawn(move || {
            let _done = done;
            run();
        });
        if ended.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
            // A scope would wait for the thread that hangs.
            eprintln!("{name} hangs");
            std::process::abort();
        }
        thread.join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Runs a case on every replica of a group. A replica that fails a check leaves the group, so that the others end.
fn run(case: Case, inner: usize, group: Vec<Box<dyn Communicator>>) {
    let barrier = Arc::new(Barrier::new(group.len()));
    without_a_hang(case.name, || {
        std::thread::scope(|scope| {
            let start = |communicator| {
                let barrier = barrier.clone();
                let replica = Replica { communicator, inner, barrier: Box::new(move || drop(barrier.wait())) };
                scope.spawn(move || (case.run)(replica))
            };
            let threads: Vec<_> = group.into_iter().map(start).collect();
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            for (rank, ended) in ended.into_iter().enumerate() {
                assert!(ended.is_ok(), "{}: replica {rank} failed", case.name);
            }
        });
    });
}

fn local(replicas: usize, time_limit: Duration) -> Vec<Box<dyn Communicator>> {
    let replicas = Local::group(replicas).into_iter();
    replicas.map(|replica| Box::new(replica.with_time_limit(time_limit)) as Box<dyn Communicator>).collect()
}

#[test]
fn local_groups_work() {
    for replicas in [1, 2, 3, 4, 7] {
        for case in WORKS {
            run(*case, 1, local(replicas, case.time_limit));
        }
    }
}

#[test]
fn local_groups_end() {
    for replicas in [2, 3, 4, 7] {
        for case in ENDS {
            for _ in 0..if case.name == "one is late" { 1 } else { 20 } {
                run(*case, 1, local(replicas, case.time_limit));
            }
        }
    }
}

#[test]
fn a_replica_that_panics_leaves() {
    without_a_hang("a panic", || {
        std::thread::scope(|scope| {
            let mut group = Local::group(3);
            let panics = group.remove(1);
            let panicked = scope.spawn(move || {
                let _panics = panics;
                panic!("an index out of bounds");
            });
            for replica in group {
                scope.spawn(move || {
                    let error = replica.exchange(&[]).unwrap_err();
                    assert_eq!(error, Error::Left { rank: 1, reason: "its thread panicked".into() });
                });
            }
            assert!(panicked.join().is_err());
        });
    });
}

#[test]
fn a_group_of_one_gives_back_what_it_is_given() {
    let alone = Local::group(1).remove(0);
    let values = Tensor::<1>::from_floats([1.0, -0.0, f32::NAN], &Device::flex());
    assert_eq!(bits(&alone.all_reduce(values.clone()).unwrap()), bits(&values));
    assert_eq!(alone.replicas(), 1);
    alone.leave("done");
    assert_eq!(alone.all_reduce(values).unwrap_err(), Error::Left { rank: 0, reason: "done".into() });
}

#[test]
fn other_dtypes_are_refused() {
    let alone = Local::group(1).remove(0);
    let values = Tensor::<1>::zeros([2], &Device::flex()).cast(burn::tensor::DType::F16);
    let error = alone.all_reduce(values).unwrap_err();
    assert_eq!(error.to_string(), "dtype of values that replicas exchange = F16: expected F32");
}
