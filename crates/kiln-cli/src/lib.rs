//! The command line of Kiln: trains reference models inside a memory budget, evaluates them, and shows how every byte is used.
//!
//! `kiln` is the program; `cargo xtask` has the same commands beside those of maintainers.
//!
//! - [`Command`] is a parsed command line, and [`run`] runs it.
//! - [`pipelines`]: settings, tasks and data of the classifier, the segmentation and the decoder.
//! - The pipelines and their measurements share the other modules: [`device`], [`fixtures`], [`profile`], [`host`], [`usage`].

mod advice;
mod cli;
mod command;
mod compress;
pub mod device;
mod doctor;
mod eval;
mod export;
pub mod fetch;
pub mod fixtures;
mod given;
pub mod gpu;
pub mod heap;
pub mod host;
mod interrupt;
pub mod libdevice;
mod load;
mod log;
mod memory;
mod mistake;
mod models;
pub mod output;
mod outputs;
pub mod pipelines;
mod plan;
mod predict;
pub mod process;
pub mod profile;
mod run_directory;
mod runs;
mod sample;
mod settings_file;
mod shell;
mod train;
mod trained;
pub mod units;
pub mod usage;
mod values;

pub use cli::{Command, Verbosity, overview};
pub use command::{finish, run};
pub use heap::HEAP;
pub use log::init as init_log;
