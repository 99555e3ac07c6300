//! A model in stages trains as a model in one piece.

mod equal;
mod failures;
mod model;
mod released;
mod resume;
