//! Groups of replicas on threads.

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use kiln_parallel::{Communicator, Error, Local, Nested};

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

/// Makes the communicator of a replica, on its thread.
type Join = Box<dyn FnOnce() -> Box<dyn Communicator> + Send>;

/// Runs a case on every replica of a group. A replica that fails a check leaves the group, so that the others end.
fn run(case: Case, inner: usize, group: Vec<Join>) {
    let barrier = Arc::new(Barrier::new(group.len()));
    without_a_hang(case.name, || {
        std::thread::scope(|scope| {
            let start = |join: Join| {
                let barrier = barrier.clone();
                scope.spawn(move || {
                    let barrier = Box::new(move || {
                        barrier.wait();
                    });
                    (case.run)(Replica { communicator: join(), inner, barrier });
                })
            };
            let threads: Vec<_> = group.into_iter().map(start).collect();
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            for (rank, ended) in ended.into_iter().enumerate() {
                assert!(ended.is_ok(), "{}: replica {rank} failed", case.name);
            }
        });
    });
}

fn local(replicas: usize, time_limit: Duration) -> Vec<Join> {
    let replicas = Local::group(replicas).into_iter().map(|replica| replica.with_time_limit(time_limit));
    replicas.map(|replica| Box::new(|| Box::new(replica) as Box<dyn Communicator>) as Join).collect()
}

/// As if `outer` processes had `inner` replicas each.
fn nested(outer: usize, inner: usize, time_limit: Duration) -> Vec<Join> {
    let process = |between: Local| {
        let between = Arc::new(between.with_time_limit(time_limit));
        let join = move |inside: Local| {
            // The others of a process wait for a leader that waits.
            let (inside, between) = (inside.with_time_limit(3 * time_limit), between.clone());
            Box::new(|| Box::new(Nested::new(inside, between).unwrap()) as Box<dyn Communicator>) as Join
        };
        Local::group(inner).into_iter().map(join)
    };
    Local::group(outer).into_iter().flat_map(process).collect()
}

/// Numbers of processes, and of replicas in each.
const SHAPES: [(usize, usize); 6] = [(2, 1), (1, 3), (2, 2), (2, 3), (3, 2), (4, 1)];

#[test]
fn local_groups_work() {
    for replicas in [1, 2, 3, 4, 7] {
        for case in WORKS {
            run(*case, 1, local(replicas, case.time_limit));
        }
    }
}

#[test]
fn groups_of_groups_work() {
    for (outer, inner) in SHAPES {
        for case in WORKS {
            run(*case, inner, nested(outer, inner, case.time_limit));
        }
    }
}

/// How often a case runs: ends come at other moments each time.
fn times(case: &Case) -> usize {
    if case.time_limit < Duration::from_secs(1) { 1 } else { 20 }
}

#[test]
fn local_groups_end() {
    for replicas in [2, 3, 4, 7] {
        for case in ENDS {
            for _ in 0..times(case) {
                run(*case, 1, local(replicas, case.time_limit));
            }
        }
    }
}

#[test]
fn groups_of_groups_end() {
    for (outer, inner) in SHAPES {
        for case in ENDS {
            for _ in 0..times(case) {
                run(*case, inner, nested(outer, inner, case.time_limit));
            }
        }
    }
}

/// Also when the others of its process compute for long, and do not come to an operation.
#[test]
fn other_processes_learn_at_once_of_a_replica_that_leaves() {
    without_a_hang("another process", || {
        let learned = Arc::new(Barrier::new(3));
        std::thread::scope(|scope| {
            for join in nested(2, 2, Duration::from_secs(120)) {
                let learned = learned.clone();
                scope.spawn(move || {
                    let replica = join();
                    match replica.rank() {
                        3 => replica.leave("the disk is full"),
                        2 => {
                            learned.wait();
                        }
                        _ => {
                            let error = replica.exchange(&[]).unwrap_err();
                            assert!(error.to_string().contains("replica 3: the disk is full"), "{error}");
                            learned.wait();
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn processes_with_different_numbers_of_replicas_are_refused() {
    without_a_hang("different numbers", || {
        std::thread::scope(|scope| {
            for (between, inner) in Local::group(2).into_iter().zip([1, 2]) {
                let between = Arc::new(between);
                for inside in Local::group(inner) {
                    let between = between.clone();
                    scope.spawn(move || {
                        let error = Nested::new(inside, between).unwrap_err();
                        let what = "the number of replicas in a process".into();
                        assert_eq!(error, Error::Differs { what, values: vec![1, 2] });
                    });
                }
            }
        });
    });
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
