//! From instructions to a program: registers laid out, operations chosen, basic blocks in the order they are run.

mod arithmetic;
mod builder;
mod flow;
mod memory;
mod order;
mod program;
mod warp;

pub(crate) use flow::lower;
pub(crate) use program::{Exit, Global, Program, Special};
