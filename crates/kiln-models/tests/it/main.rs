//! The models against their reference implementations, and the configurations and files that they refuse.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod decoders;
mod errors;
mod generate;
mod matching;
mod pruned;
mod reference;
