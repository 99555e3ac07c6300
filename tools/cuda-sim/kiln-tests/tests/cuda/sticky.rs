//! A lost GPU: whichever operation reports it, a step ends with an error, and the earlier checkpoint stays whole.

use burn::module::Module;
use kiln_training::{Checkpoints, Error, OptimizerConfig};

use crate::run::device;
use crate::sim::{Card, with_cards};
use crate::support::{Ids, Net, Watched, batch, builder, settings};

/// Operations of the driver that a step uses.
const OPERATIONS: [&str; 8] = ["launch", "h2d", "d2h", "sync", "event", "record", "event-sync", "alloc"];

/// `faults` lose the card in a step after the first one. Returns how many there were.
pub(crate) fn lost(card: &Card, faults: &str) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path(), 2).unwrap();
    let net = Net::new(&[12, 16, 16], true, 0.0);
    let settings = settings(OptimizerConfig::adamw());
    let make = || {
        let builder = builder(Ids::net(), |device| net.valid().to_device(&device.clone().inner()).train(), &settings);
        Watched::build_on(builder, &device(), &batch(0, 8))
    };
    let mut trainer = make();
    let _ = trainer.step(&batch(0, 8)).unwrap();
    let saved = trainer.save_to(&checkpoints).unwrap();
    // Memory that is free already needs no allocation.
    device().inner().memory_cleanup();

    let before = card.count("faults");
    card.arm(faults);
    let mut ended = None;
    for step in 1..4 {
        if let Err(error) = trainer.step(&batch(step, 8)) {
            ended = Some(error);
            break;
        }
    }
    let injected = card.count("faults") - before;
    println!("{faults}: {injected} faults, {ended:?}");
    if injected == 0 {
        assert!(ended.is_none());
        return 0;
    }
    let ended = ended.expect("the card is lost, and three steps succeed");
    assert!(matches!(ended, Error::Lost(_) | Error::Device { .. }), "{ended:?}");
    // A lost GPU stays lost: the next step reports it too, and nothing is saved.
    let again = trainer.step(&batch(1, 8)).unwrap_err();
    assert!(matches!(again, Error::Lost(_) | Error::Device { .. } | Error::Unfinished { .. }), "{again:?}");
    let state = trainer.state();
    match trainer.save_to(&checkpoints) {
        Err(error) => println!("save: {error}"),
        Ok(path) => panic!("{path:?} was saved of a lost card, at step {}", state.step),
    }
    assert_eq!(checkpoints.newest().unwrap(), Some(saved));
    injected
}

#[test]
fn an_illegal_address() {
    with_cards(&[], &OPERATIONS, |card, operation| {
        lost(card, &format!("{operation}:3:700"));
    });
}

#[test]
fn a_failed_launch() {
    with_cards(&[], &OPERATIONS, |card, operation| {
        lost(card, &format!("{operation}:3:719"));
    });
}
