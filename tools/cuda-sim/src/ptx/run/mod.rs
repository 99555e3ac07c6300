//! Runs a grid: blocks over threads, warps of a block in turn, diverged lanes lowest block first.

mod block;
mod grid;
mod warp;

pub(crate) use grid::{grid, traffic};
