//! Processes that end or stop without a word.

use std::process::Command;
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

/// The rank that ends or stops.
const VICTIM: usize = 1;

/// What `mpirun` promises: it ends the others within seconds, and names the rank.
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

/// The part of one replica.
pub(crate) fn run(case: &str, address: &str) {
    let limit = if case == KILLED { 120 } else { 2 };
    let communicator = Mpi::init(Duration::from_secs(limit)).unwrap();
    communicator.exchange(&[]).unwrap();
    let victim = communicator.rank() == VICTIM;
    let length = if case == STOPPED_IN_AN_OPERATION { 4_000_000 } else { 10 };
    if victim {
        match case {
            KILLED => signal("KILL"),
            STOPPED => signal("STOP"),
            _ => {
                std::thread::spawn(|| signal("STOP"));
            }
        }
    }
    let begun = Instant::now();
    let error = loop {
        if let Err(error) = communicator.all_reduce(Tensor::ones([length], &Device::flex())) {
            break error;
        }
    };
    match &error {
        Error::Waited { missing, .. } if *missing == [VICTIM] => {}
        error => panic!("{error}"),
    }
    assert!(begun.elapsed() < Duration::from_secs(limit * 2 + 10), "{:?}", begun.elapsed());
    // MPI is not finalised, so that nothing waits here.
    let others = communicator.replicas() - 1;
    drop(communicator);
    say(address, PASSED);
    // mpirun ends all processes when one has ended.
    barrier(address, others);
    std::process::exit(7);
}

/// Sends a signal to this process.
fn signal(name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &std::process::id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}
