//! Pixels in memory: rectangles, orientation, colour models, and reduction in size.

pub(super) mod colour;
pub(super) mod image;
pub(super) mod orientation;
pub(super) mod reduce;
pub(super) mod resample;
pub(super) mod view;
