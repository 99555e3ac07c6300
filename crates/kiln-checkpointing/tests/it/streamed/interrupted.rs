//! The process ends at any moment, and the store fails at any use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

use kiln_checkpointing::{Blob, Error, FileStore, HostStore, Plan, Store, Streamed};

use super::{BLOCKS, adamw, blocks, in_memory, step, weights};
use crate::support::alone;

/// The store of the run that the parent kills.
const STORE: &str = "KILN_TEST_STORE";

fn train(directory: &Path, steps: usize) {
    let store = FileStore::open(directory).unwrap();
    let optimizer = adamw();
    let (streamed, model) = match store.note().unwrap() {
        None => Streamed::create(store, blocks()).unwrap(),
        Some(_) => Streamed::open(store, blocks()).unwrap(),
    };
    let done: usize = streamed.note().parse().unwrap_or(0);
    for done in done..steps {
        step(&streamed, &model, &optimizer, &Plan::stream(BLOCKS, 1).unwrap(), done).unwrap();
        streamed.commit(&format!("{}", done + 1)).unwrap();
    }
}

#[test]
#[ignore = "the process that the next test kills"]
fn a_run_to_be_killed() {
    if let Ok(directory) = std::env::var(STORE) {
        train(Path::new(&directory), usize::MAX);
    }
}

#[test]
fn a_run_that_is_killed_at_any_moment_goes_on_with_the_same_bits() {
    let _alone = alone();
    let [killed, undisturbed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let steps = || {
        let note = FileStore::open(killed.path()).unwrap().note().unwrap();
        note.map_or(0, |note| note_of(&note))
    };
    let (mut random, mut done, mut idle, mut longest) = (0x9e37_79b9_u64, 0, 0, 100_000);
    for _ in 0..50 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "streamed::interrupted::a_run_to_be_killed", "--ignored"]).env(STORE, killed.path());
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        sleep(Duration::from_micros((random >> 33) % longest));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        // On a slow machine a process that is killed too soon never comes to a step.
        let before = std::mem::replace(&mut done, steps());
        idle = if done == before { idle + 1 } else { 0 };
        if idle == 4 {
            (idle, longest) = (0, 2 * longest);
        }
    }
    assert!(done >= 10, "{done} steps in all");
    train(killed.path(), done + 2);
    train(undisturbed.path(), done + 2);
    let bits = [killed, undisturbed].map(|directory| {
        let (streamed, model) = Streamed::open(FileStore::open(directory.path()).unwrap(), blocks()).unwrap();
        weights(&streamed.filled(model).unwrap())
    });
    assert!(bits[0] == bits[1]);
}

fn note_of(text: &str) -> usize {
    let note: serde_json::Value = serde_json::from_str(text).unwrap();
    note["note"].as_str().unwrap().parse().unwrap_or(0)
}

/// A store that fails once, at its n-th use.
struct Failing {
    store: HostStore,
    left: Arc<AtomicI64>,
}

impl Failing {
    fn used(&self) -> Result<(), Error> {
        match self.left.fetch_sub(1, SeqCst) {
            1 => Err(Error::Store { path: "the disk".into(), reason: "it is full".into() }),
            _ => Ok(()),
        }
    }
}

impl Store for Failing {
    fn read(&self, blob: Blob, take: &mut dyn FnMut(&[u8], usize)) -> Result<bool, Error> {
        self.used().and_then(|()| self.store.read(blob, take))
    }

    fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        self.used().and_then(|()| self.store.write(blob, bytes))
    }

    fn commit(&self, blobs: &[Blob], note: &str) -> Result<(), Error> {
        self.used().and_then(|()| self.store.commit(blobs, note))
    }

    fn note(&self) -> Result<Option<String>, Error> {
        self.store.note()
    }
}

#[test]
fn a_failure_at_any_use_of_the_store_changes_no_bit() {
    let _alone = alone();
    let expected = in_memory(adamw());
    let plan = Plan::stream(BLOCKS, 2).unwrap();
    let (mut failed, mut at) = (0, 1);
    loop {
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let store = Failing { store: HostStore::new(), left: left.clone() };
        let (streamed, model) = Streamed::create(store, blocks()).unwrap();
        let optimizer = adamw();
        let whole = |done: usize| {
            step(&streamed, &model, &optimizer, &plan, done)?;
            streamed.commit("")
        };
        whole(0).unwrap();
        left.store(at, SeqCst);
        // In the backward pass an error is a panic.
        let tried = catch_unwind(AssertUnwindSafe(|| whole(1)));
        let ended = left.swap(i64::MAX, SeqCst) > 0;
        match tried {
            Ok(Ok(())) => {}
            Ok(Err(error)) => assert_eq!(error.to_string(), "the store cannot be used: the disk: it is full"),
            Err(panic) => assert!(panic.downcast_ref::<String>().unwrap().contains("it is full")),
        }
        if weights(&streamed.filled(model.clone()).unwrap()) != expected[2] {
            failed += 1;
            assert!(weights(&streamed.filled(model.clone()).unwrap()) == expected[1], "failure at use {at}");
            // A commit in spite of the error changes at most what the update has completed: nothing.
            streamed.discard();
            streamed.commit("").unwrap();
            assert!(
                weights(&streamed.filled(model.clone()).unwrap()) == expected[1],
                "commit after a failure at use {at}"
            );
            streamed.discard();
            whole(1).unwrap();
        }
        whole(2).unwrap();
        assert!(weights(&streamed.filled(model.clone()).unwrap()) == expected[3], "failure at use {at}");
        if ended {
            break;
        }
        at += 1;
    }
    assert!(failed > 60, "{failed} of {at} uses failed");
}
