//! Options that divide a run among devices.

use clap::Args;

use super::values::{SCHEDULE, devices};

/// Options that divide a run among devices. A run goes on with other ones than it was started with.
#[derive(Args, Default)]
pub(crate) struct ParallelArgs {
    #[command(flatten)]
    pub(crate) stages: StagesArgs,
    /// Copies of the model that compute a part of every batch each [default: 1]
    ///
    /// A number (in threads, on --device), one for each of some devices, as in gpu:0,gpu:1, mpi (one in each process that
    /// mpirun starts), or mpi:2 and mpi:gpu:0,gpu:1 (several in each).
    #[arg(long, value_name = "N", value_parser = replicas, help_heading = "Several devices")]
    pub(crate) replicas: Option<String>,
    /// Divide the optimizer's state among the replicas (ZeRO stage 1)
    #[arg(long, help_heading = "Several devices")]
    pub(crate) shard_optimizer: bool,
}

/// Options that divide the model's blocks.
#[derive(Args, Default)]
pub(crate) struct StagesArgs {
    /// Divide the model's blocks: a number of stages, or a device for each [default: 1]
    ///
    /// A number of stages is on --device; devices are named as in gpu:0,gpu:1.
    #[arg(long, value_name = "N", value_parser = devices, help_heading = "Several devices")]
    pub(crate) stages: Option<String>,
    /// The order in which stages work on micro-batches [default: 1f1b]
    #[arg(long, value_parser = SCHEDULE, value_name = "NAME", help_heading = "Several devices")]
    pub(crate) schedule: Option<String>,
}

/// Replicas with their devices by any of their names.
fn replicas(text: &str) -> Result<String, std::convert::Infallible> {
    match text.split_once(':') {
        Some(("mpi", here)) => devices(here).map(|here| format!("mpi:{here}")),
        _ => devices(text),
    }
}
