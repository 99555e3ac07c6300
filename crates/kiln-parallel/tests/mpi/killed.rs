//! Processes that end or stop without a word, or in the middle of an operation.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use kiln_parallel::{Communicator, Error, Mpi};

use crate::launch::{Launch, PASSED, barrier, say};

/// A process that is killed.
pub(crate) const KILLED: &str = "one is killed";
/// A process that stops between operations.
pub(crate) const STOPPED: &str = "one is stopped";
/// A process that stops while values are on their way.
pub(crate) const STOPPED_IN_AN_OPERATION: &str = "one is stopped in an operation";

/// A process that leaves while values are on their way.
pub(crate) const LEAVES_IN_AN_OPERATION: &str = "one leaves in an operation";

/// The rank that ends or stops.
const VICTIM: usize = 1;

/// `mpirun` ends the others within seconds, and names the rank.
pub(crate) fn others_end(replicas: usize) -> Result<(), String> {
    let ended = Launch::new(replicas, KILLED).run()?;
    let named = ended.text.contains("rank 1") && ended.text.contains("signal 9");
    if ended.code == Some(0) || !named || ended.after > Duration::from_secs(20) {
        return Err(format!("mpirun ended after {:?} with {:?}\n{}", ended.after, ended.code, ended.text));
    }
    Ok(())
}

/// The others wait for the time limit and name the process; `mpirun` ends it when they end.
pub(crate) fn others_wait(replicas: usize, case: &'static str) -> Result<(), String> {
    let ended = Launch::new(replicas, case).run()?;
    let passed = ended.words.iter().filter(|word| *word == PASSED).count();
    if ended.code == Some(0) || passed + 1 < replicas || ended.after > Duration::from_secs(30) {
        return Err(format!(
            "mpirun ended after {:?} with {:?}\n{:?}\n{}",
            ended.after, ended.code, ended.words, ended.text
        ));
    }
    Ok(())
}

/// All learn of it at once, the one that leaves too.
pub(crate) fn others_learn(replicas: usize) -> Result<(), String> {
    let ended = Launch::new(replicas, LEAVES_IN_AN_OPERATION).run()?;
    ended.all_passed(replicas)
}

/// The part of one replica.
pub(crate) fn run(case: &str, address: &str) {
    let limit = if case == STOPPED || case == STOPPED_IN_AN_OPERATION { 2 } else { 120 };
    let communicator = Arc::new(Mpi::init(Duration::from_secs(limit)).unwrap());
    let replicas = communicator.replicas();
    communicator.exchange(&[]).unwrap();
    if communicator.rank() == VICTIM {
        let own = communicator.clone();
        match case {
            KILLED => signal("KILL"),
            STOPPED => signal("STOP"),
            STOPPED_IN_AN_OPERATION => soon(|| signal("STOP")),
            _ => soon(move || own.leave("that is enough")),
        }
    }
    let length = if case == STOPPED { 10 } else { 4_000_000 };
    let begun = Instant::now();
    let error = loop {
        if let Err(error) = communicator.all_reduce(Tensor::ones([length], &Device::flex())) {
            break error;
        }
    };
    let waiting = if case == LEAVES_IN_AN_OPERATION {
        assert_eq!(error, Error::Left { rank: VICTIM, reason: "that is enough".into() });
        // MPI may be finalised, which waits for the others.
        std::mem::forget(communicator);
        replicas
    } else {
        assert!(matches!(&error, Error::Waited { missing, .. } if *missing == [VICTIM]), "{error}");
        // MPI is not finalised, so that nothing waits here.
        drop(communicator);
        replicas - 1
    };
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    say(address, PASSED);
    // mpirun ends all processes when one has ended.
    barrier(address, waiting);
    std::process::exit(7);
}

/// Runs a function while operations follow each other, most likely in the middle of one.
fn soon(run: impl FnOnce() + Send + 'static) {
    let begun = Instant::now();
    std::thread::spawn(move || {
        while begun.elapsed() < Duration::from_millis(100) {
            std::thread::yield_now();
        }
        run();
    });
}

/// Sends a signal to this process.
fn signal(name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &std::process::id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}
