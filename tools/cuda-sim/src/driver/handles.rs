//! Handles for streams, events, modules and the rest: numbers that are never used twice, so that a stale one is found out.

use std::collections::HashMap;

use super::code::{Answer, Code};

/// A handle as the program holds it, in the place of a pointer.
pub(crate) type Handle = usize;

/// Objects of one kind by handle.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    next: Handle,
    objects: HashMap<Handle, T>,
}

impl<T> Handles<T> {
    /// `kind` (from 1) keeps the handles of different kinds apart.
    pub(crate) fn new(kind: u16) -> Self {
        Self { next: (usize::from(kind) << 40) + 16, objects: HashMap::new() }
    }

    pub(crate) fn insert(&mut self, object: T) -> Handle {
        let handle = self.next;
        self.next += 16; // as a pointer would be aligned
        self.objects.insert(handle, object);
        handle
    }

    /// # Errors
    /// `INVALID_HANDLE` for a handle that was destroyed or never made.
    pub(crate) fn get(&self, handle: Handle) -> Answer<&T> {
        self.objects.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// # Errors
    /// As [`Handles::get`].
    pub(crate) fn get_mut(&mut self, handle: Handle) -> Answer<&mut T> {
        self.objects.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// # Errors
    /// As [`Handles::get`].
    pub(crate) fn remove(&mut self, handle: Handle) -> Answer<T> {
        self.objects.remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Drops every object that `keep` refuses.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.objects.retain(|_, object| keep(object));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.objects.iter().map(|(handle, object)| (*handle, object))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.values_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_never_given_twice() {
        let (mut streams, mut events) = (Handles::new(1), Handles::new(2));
        let first = streams.insert('a');
        assert_eq!(streams.remove(first), Ok('a'));
        let second = streams.insert('b');
        assert_ne!(first, second);
        assert_eq!(streams.get(first), Err(Code::INVALID_HANDLE));
        assert_eq!(streams.remove(first), Err(Code::INVALID_HANDLE));
        assert_eq!(streams.get(second), Ok(&'b'));
        assert_eq!(events.get(second), Err(Code::INVALID_HANDLE));
        assert_ne!(events.insert('c'), second);
    }
}
