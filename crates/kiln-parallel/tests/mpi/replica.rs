//! One process of a group.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use kiln_parallel::{Communicator, Error, Local, Mpi, Nested};

use crate::conformance::{ENDS, Replica, WORKS};
use crate::launch::{PASSED, barrier, say};
use crate::{killed, raw};

/// The name of all cases that leave the group as it is.
pub(crate) const ALL_THAT_WORKS: &str = "all that works";
/// The name of the cases of [`ALL_THAT_WORKS`] with values in pieces of few elements.
pub(crate) const ALL_IN_PIECES: &str = "all that works in pieces";
/// The name of the cases of [`ALL_THAT_WORKS`] with two threads in each process.
pub(crate) const ALL_WITH_THREADS: &str = "all that works with threads in each process";

pub(crate) fn main(arguments: &[String]) {
    let [case, address, replicas] = arguments else {
        panic!("expected a case, an address and a number: {arguments:?}")
    };
    let checks = catch_unwind(AssertUnwindSafe(|| run(case, address)));
    if checks.is_err() {
        // The panic's message was printed.
        say(address, "failed");
        std::process::exit(1);
    }
    say(address, PASSED);
    // mpirun ends all processes when one has ended without finalising MPI, as some cases do.
    barrier(address, replicas.parse().unwrap());
}

fn run(case: &str, address: &str) {
    let own = address.to_owned();
    let replica = |communicator: Box<dyn Communicator>| {
        let (address, replicas) = (own.clone(), communicator.replicas());
        Replica { communicator, inner: 1, barrier: Box::new(move || barrier(&address, replicas)) }
    };
    if case == ALL_THAT_WORKS || case == ALL_IN_PIECES {
        let elements = if case == ALL_IN_PIECES { 999 } else { i32::MAX as usize };
        let communicator = Arc::new(Mpi::init_with_pieces(Duration::from_secs(60), elements).unwrap());
        let again = Mpi::init(Duration::from_secs(60)).unwrap_err();
        assert!(matches!(again, Error::Transfer { operation: "init", .. }), "{again}");
        for case in WORKS {
            (case.run)(replica(Box::new(communicator.clone())));
        }
    } else if case == ALL_WITH_THREADS {
        let between = Arc::new(Mpi::init(Duration::from_secs(60)).unwrap());
        std::thread::scope(|scope| {
            for inside in Local::group(2) {
                let between = between.clone();
                scope.spawn(move || {
                    let communicator = Arc::new(Nested::new(inside, between).unwrap());
                    for case in WORKS {
                        let barrier = Box::new(|| panic!("no case that works needs a barrier"));
                        (case.run)(Replica { communicator: Box::new(communicator.clone()), inner: 2, barrier });
                    }
                });
            }
        });
    } else if let Some(case) = ENDS.iter().find(|other| other.name == case) {
        (case.run)(replica(Box::new(Mpi::init(case.time_limit).unwrap())));
    } else if [raw::PIECES, raw::UNREADABLE].contains(&case) {
        raw::run(case);
    } else {
        killed::run(case, address);
    }
}
