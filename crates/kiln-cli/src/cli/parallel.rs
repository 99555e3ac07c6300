//! Options that divide a run among devices.

use clap::Args;

/// Options that divide a run among devices. A run goes on with other ones than it was started with.
#[derive(Args, Default)]
pub(crate) struct ParallelArgs {
    /// Copies of the model that compute a part of every batch each: a number (in threads, on --device), one for each of some devices, as in
    /// cuda:0,cuda:1, mpi (one in each process that mpirun starts), or mpi:2 and mpi:cuda:0,cuda:1 (several in each)
    #[arg(long, value_name = "N")]
    pub(crate) replicas: Option<String>,
    /// Divide the optimizer's state among the replicas (ZeRO stage 1)
    #[arg(long)]
    pub(crate) shard_optimizer: bool,
    /// Divide the model's blocks among devices, as in cuda:0,cuda:1, or into a number of stages on --device
    #[arg(long, value_name = "N")]
    pub(crate) stages: Option<String>,
    /// The order in which stages work on micro-batches: 1f1b, gpipe or sequential [default: 1f1b]
    #[arg(long)]
    pub(crate) schedule: Option<String>,
}

impl ParallelArgs {
    /// Whether one of them is given.
    pub(crate) fn given(&self) -> bool {
        self.replicas.is_some() || self.shard_optimizer || self.stages.is_some() || self.schedule.is_some()
    }
}
