//! Brings files into the system's cache before they are read, where they take no memory of the process.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes that are read at once.
const PIECE: usize = 32 << 10;

/// Reads files on a thread of its own, one set at a time.
#[derive(Debug, Default)]
pub(super) struct Ahead(Mutex<Option<JoinHandle<()>>>);

impl Ahead {
    /// Begins to read files. Without a thread, and while others are read, they are read when they are needed.
    pub(super) fn begin(&self, files: Vec<PathBuf>) {
        let mut reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if files.is_empty() || reading.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        *reading = thread::Builder::new().name("read ahead".into()).spawn(move || read(&files)).ok();
    }
}

/// Whoever needs a file that cannot be read will learn it.
fn read(files: &[PathBuf]) {
    let mut piece = [0; PIECE];
    for file in files {
        let Ok(mut file) = File::open(file) else { continue };
        while file.read(&mut piece).is_ok_and(|count| count > 0) {}
    }
}
