//! Writes what a step makes on a thread of its own, while the step goes on.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use burn::tensor::Bytes;

use super::store::{Blob, Store};
use crate::Error;

/// Bytes, and the blobs that parts of them are.
pub(super) struct Put {
    pub(super) bytes: Bytes,
    pub(super) blobs: Vec<(Blob, Range<usize>)>,
}

/// At most one write at a time. What a write has to say is said by the next one, or by whoever waits for it.
#[derive(Default)]
pub(super) struct Writer {
    writing: Mutex<Option<JoinHandle<Result<(), Error>>>>,
}

impl Writer {
    /// Begins to write to `store`, when the write before has ended.
    ///
    /// # Errors
    /// That of the write before; this one is then not begun. Without a thread, also that of this one.
    pub(super) fn begin(&self, store: Arc<dyn Store>, puts: Vec<Put>) -> Result<(), Error> {
        let mut writing = self.lock();
        end(&mut writing)?;
        let puts = Arc::new(puts);
        let (of_thread, its_store) = (puts.clone(), store.clone());
        match thread::Builder::new().name("writer".into()).spawn(move || write(&*its_store, &of_thread)) {
            Ok(thread) => *writing = Some(thread),
            Err(_) => write(&*store, &puts)?,
        }
        Ok(())
    }

    /// Waits for the write.
    ///
    /// # Errors
    /// That of the write.
    pub(super) fn finish(&self) -> Result<(), Error> {
        end(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Option<JoinHandle<Result<(), Error>>>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(store: &dyn Store, puts: &[Put]) -> Result<(), Error> {
    puts.iter().try_for_each(|Put { bytes, blobs }| {
        blobs.iter().try_for_each(|(blob, part)| store.write(*blob, &bytes[part.clone()]))
    })
}

fn end(writing: &mut Option<JoinHandle<Result<(), Error>>>) -> Result<(), Error> {
    match writing.take().map(JoinHandle::join) {
        Some(Ok(written)) => written,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => Ok(()),
    }
}

impl Drop for Writer {
    /// The thread has the store, which may be opened again at once.
    fn drop(&mut self) {
        let _ = self.lock().take().map(JoinHandle::join);
    }
}
