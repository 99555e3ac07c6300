//! Values of fields that a configuration in a file may leave out.

/// Channels of an RGB image.
pub(crate) fn three() -> usize {
    3
}

/// The default factor of the numbers of channels.
pub(crate) fn one() -> f64 {
    1.0
}

/// Whether blocks are lean.
pub(crate) fn yes() -> bool {
    true
}
