//! Autocast and loss scaling on burn's layers.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod autocast;
mod conformance;
mod large_gradients;
mod scaling;
mod support;
