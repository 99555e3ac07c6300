//! The transactional step, the loop, the planner and checkpoints, seen from outside.
#![allow(clippy::unwrap_used, reason = "a test ends at the first error")]

mod bad_samples;
mod batch_scaling;
mod best;
mod builder;
mod burn_parts;
mod case;
mod compression;
mod counting;
mod ends;
mod exact;
mod exact_divided;
mod freeze;
mod goes_on;
mod growth;
mod kept;
mod laws;
mod layouts;
mod micro_batches;
mod optimizer;
mod optimizers_by_name;
mod picture;
mod planning;
mod recovery;
mod released;
mod remedies;
mod replicas;
mod replicas_end;
mod replicas_memory;
mod replicas_state;
mod resume;
mod segmentation;
mod soak;
mod stages;
mod stored;
mod support;
mod update;

use kiln_memory::CountingAllocator;

/// For the tests that measure the heap. They run alone, so that none disturbs them.
#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// A test that draws random numbers beside another one would rarely change its numbers: a failure that nobody can repeat.
#[test]
fn every_test_takes_its_turn() {
    let _turn = support::beside();
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let tests = source.lines().filter(|line| line.trim() == "#[test]").count();
            let turns = source.matches("let _turn = ").count();
            assert!(tests <= turns, "{}: {tests} tests, of which {turns} take their turn", path.display());
        }
    }
}
