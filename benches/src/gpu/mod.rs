//! `cargo xtask gpu`: a numbered list of checks and measurements on a GPU. Each item runs in a process of its own and ends in pass or
//! fail, with figures. A failing item does not stop the others.
//!
//! `runner` starts the items, an item writes its `findings` while it runs, and `page` makes `docs/results.md` from the committed results.

mod archive;
mod arguments;
mod child;
mod commands;
mod comparison;
mod context;
mod failures;
mod findings;
#[cfg(any(test, feature = "cube"))]
mod kernels;
#[cfg(feature = "cube")]
mod launches;
mod list;
mod measure;
mod networks;
mod page;
mod runner;

mod arithmetic;
mod ballast;
mod curves;
mod facts;
mod messages;
mod out_of_memory;
mod overhead;
mod plans;
mod prediction;
mod reference;
mod speed;
mod torch;
mod uploads;

use std::process::ExitCode;

use anyhow::Result;

pub use arguments::GpuArguments;

/// Runs the items, or prints the list, as the arguments say.
///
/// # Errors
/// Those of a wrong call; an item that fails is a finding and changes the exit status.
pub fn run(arguments: &GpuArguments) -> Result<ExitCode> {
    if let Some(request) = &arguments.curve {
        return curves::child(&arguments.device, request);
    }
    let chosen = match arguments.warm {
        false => list::chosen(&arguments.items)?,
        true => list::warmed(&arguments.items)?,
    };
    if arguments.child {
        for number in chosen {
            child::run(arguments, number)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.list {
        return list::print().map(|()| ExitCode::SUCCESS);
    }
    if arguments.page {
        return page::write().map(|()| ExitCode::SUCCESS);
    }
    runner::run(arguments, &chosen)
}
