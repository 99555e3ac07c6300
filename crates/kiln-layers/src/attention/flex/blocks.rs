//! Sizes of the blocks that attention is computed in.

pub(super) use crate::attention::cost::{KEYS, QUERIES, SPAN};

/// The first `length` values of a buffer, which is enlarged if it is shorter.
pub(super) fn sized<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) -> &mut [T] {
    if buffer.len() < length {
        buffer.resize(length, T::default());
    }
    &mut buffer[..length]
}
