//! Tests of recording, prediction and explanation.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::single_range_in_vec_init,
    clippy::print_stdout,
    reason = "a test panics at the first failure, and a plan may have one segment"
)]

mod chain_costs;
mod divisible;
mod errors;
mod estimates;
mod explain;
mod layers;
#[path = "../lean.rs"]
mod lean;
mod offloaded;
mod own_operation;
mod picture;
mod profiles;
mod properties;
mod quantized;
mod stages;
mod steps;
