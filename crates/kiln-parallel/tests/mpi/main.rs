//! Groups of replicas in processes. The test starts itself under `mpirun`, once for each case that ends a group.
//!
//! Arguments select cases by parts of their names, as in other tests.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

#[path = "../conformance/mod.rs"]
mod conformance;
mod killed;
mod launch;
mod raw;
mod replica;

use conformance::ENDS;
use launch::Launch;

/// Numbers of processes.
const REPLICAS: [usize; 3] = [2, 3, 4];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, rest @ ..] = arguments.as_slice()
        && flag == launch::AS_REPLICA
    {
        return replica::main(rest);
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let selected = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let mut failures = vec![];
    let mut check = |name: &str, replicas: usize, outcome: &dyn Fn() -> Result<(), String>| {
        if selected(name) {
            let outcome = outcome();
            eprintln!("{replicas} processes: {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
            failures.extend(outcome.err().map(|why| format!("{replicas} processes: {name}: {why}")));
        }
    };
    check("a process without mpirun is a group of one", 1, &|| {
        Launch::alone(replica::ALL_THAT_WORKS).run()?.all_passed(1)
    });
    for replicas in REPLICAS {
        check("all that works", replicas, &|| {
            Launch::new(replicas, replica::ALL_THAT_WORKS).run()?.all_passed(replicas)
        });
        for name in [replica::ALL_IN_PIECES, replica::ALL_WITH_THREADS] {
            check(name, replicas, &|| Launch::new(replicas, name).run()?.all_passed(replicas));
        }
        for case in ENDS {
            check(case.name, replicas, &|| Launch::new(replicas, case.name).run()?.all_passed(replicas));
        }
    }
    for name in [raw::PIECES, raw::UNREADABLE] {
        check(name, 2, &|| Launch::new(2, name).run()?.all_passed(2));
    }
    for replicas in [2, 4] {
        check(killed::KILLED, replicas, &|| killed::others_end(replicas));
        check(killed::LEAVES_IN_AN_OPERATION, replicas, &|| killed::others_learn(replicas));
        for name in [killed::STOPPED, killed::STOPPED_IN_AN_OPERATION] {
            check(name, replicas, &|| killed::others_wait(replicas, name));
        }
    }
    if !failures.is_empty() {
        eprintln!("\n{}", failures.join("\n\n"));
        std::process::exit(1);
    }
}
