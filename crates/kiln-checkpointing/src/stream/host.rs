//! A store in host memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::store::{Blob, Store};
use crate::Error;

/// A store in host memory, for devices with memory of their own. It ends with the process.
#[derive(Debug, Default)]
pub struct HostStore {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    current: HashMap<Blob, Vec<u8>>,
    next: HashMap<Blob, Vec<u8>>,
    note: Option<String>,
}

impl HostStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The lock, also after a panic of another holder: a version is replaced as a whole.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for HostStore {
    fn read(&self, blob: Blob, take: &mut dyn FnMut(&[u8], usize)) -> Result<bool, Error> {
        let held = self.held();
        let current = held.current.get(&blob);
        current.iter().for_each(|bytes| take(bytes, 0));
        Ok(current.is_some())
    }

    fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        let mut held = self.held();
        let versions = match blob.content {
            content if content.is_of_step() => &mut held.current,
            _ => &mut held.next,
        };
        let version = versions.entry(blob).or_default();
        version.clear();
        version.extend_from_slice(bytes);
        Ok(())
    }

    fn commit(&self, blobs: &[Blob], note: &str) -> Result<(), Error> {
        let mut held = self.held();
        if let Some(missing) = blobs.iter().find(|blob| !held.next.contains_key(blob)) {
            return Err(Error::Store { path: missing.to_string(), reason: "it has no next version".into() });
        }
        let mut next = std::mem::take(&mut held.next);
        held.current.retain(|blob, _| !blob.content.is_of_step());
        held.current.extend(blobs.iter().filter_map(|blob| Some((*blob, next.remove(blob)?))));
        held.note = Some(note.to_owned());
        Ok(())
    }

    fn note(&self) -> Result<Option<String>, Error> {
        Ok(self.held().note.clone())
    }
}
