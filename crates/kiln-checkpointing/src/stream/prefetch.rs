//! Reads blobs on a thread of its own before they are asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::store::{Blob, Store};
use crate::Error;

type Bytes = Result<Option<Vec<u8>>, Error>;

/// The blobs that are read ahead: at most those of one call.
pub(super) struct Prefetch {
    store: Arc<dyn Store>,
    ahead: Mutex<Ahead>,
}

#[derive(Default)]
struct Ahead {
    reading: Option<JoinHandle<HashMap<Blob, Bytes>>>,
    read: HashMap<Blob, Bytes>,
}

impl Prefetch {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, ahead: Mutex::default() }
    }

    /// Begins to read `blobs`. Those that were read ahead before and not taken are dropped.
    pub(super) fn begin(&self, blobs: Vec<Blob>) {
        let mut ahead = self.lock();
        ahead.read.clear();
        if blobs.is_empty() {
            return;
        }
        let store = self.store.clone();
        let read = move || blobs.into_iter().map(|blob| (blob, store.read(blob))).collect();
        if let Some(reading) = ahead.reading.take() {
            let _ = reading.join();
        }
        // Without a thread, blobs are read when they are taken.
        ahead.reading = thread::Builder::new().name("prefetch".into()).spawn(read).ok();
    }

    /// Drops what was read ahead: it may have changed.
    pub(super) fn forget(&self) {
        let mut ahead = self.lock();
        ahead.read.clear();
        if let Some(reading) = ahead.reading.take() {
            let _ = reading.join();
        }
    }

    /// The bytes of a blob, read ahead or now.
    pub(super) fn take(&self, blob: Blob) -> Bytes {
        let mut ahead = self.lock();
        if let Some(reading) = ahead.reading.take() {
            ahead.read = reading.join().unwrap_or_default();
        }
        let read = ahead.read.remove(&blob);
        drop(ahead);
        read.unwrap_or_else(|| self.store.read(blob))
    }

    fn lock(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Prefetch {
    /// The thread has the store, which may be opened again at once.
    fn drop(&mut self) {
        self.forget();
    }
}
