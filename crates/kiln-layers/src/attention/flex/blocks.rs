//! Sizes of the blocks that attention is computed in.

/// Queries of a block.
pub(super) const QUERIES: usize = 128;
/// Keys of a block.
pub(super) const KEYS: usize = 256;
/// Queries that share one load of a block of keys and values.
pub(super) const SPAN: usize = 512;

/// The first `length` values of a buffer, which is enlarged if it is shorter.
pub(super) fn sized<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) -> &mut [T] {
    if buffer.len() < length {
        buffer.resize(length, T::default());
    }
    &mut buffer[..length]
}
