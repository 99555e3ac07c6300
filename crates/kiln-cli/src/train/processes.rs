//! The place of a replica among those of this process, and of the processes that mpirun started.

use std::sync::Arc;

use anyhow::{Result, bail};
use kiln_data::Replica;
use kiln_parallel::Communicator;

use crate::pipelines::{Replicas, RunSettings};
use crate::usage::Usage;

/// Sets the index of this replica in the settings. `thread` counts the replicas of this process.
pub(super) fn place(settings: &mut RunSettings, thread: usize) -> Result<()> {
    settings.parallel.check()?;
    let Some(Replicas { mpi, here }) = &settings.parallel.replicas else { return Ok(()) };
    let (process, processes) = if *mpi { mpi::world()? } else { (0, 1) };
    let (index, count) = (process * here.count() + thread, processes * here.count());
    if !settings.batch_size.is_multiple_of(count) {
        let batch = settings.batch_size;
        bail!(Usage(format!("--batch-size is {batch}, expected a multiple of the {count} replicas, which divide it")));
    }
    settings.replica = Replica::new(index, count)?;
    Ok(())
}

/// Connects the processes that mpirun started, as replicas.
pub(super) fn communicator() -> Result<Arc<dyn Communicator>> {
    mpi::communicator()
}

/// Disconnects from the processes that mpirun started, if any. A process that ends without it counts as failed.
pub(super) fn finish() {
    mpi::finish();
}

/// The processes that mpirun started.
#[cfg(feature = "mpi")]
mod mpi {
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use anyhow::Result;
    use kiln_parallel::{Communicator, Mpi};

    /// The longest time that a process waits for another one.
    const WAIT: Duration = Duration::from_secs(600);

    static WORLD: Mutex<Option<Arc<Mpi>>> = Mutex::new(None);

    pub(super) fn communicator() -> Result<Arc<dyn Communicator>> {
        let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
        let mpi = match world.take() {
            Some(mpi) => mpi,
            None => Arc::new(Mpi::init(WAIT)?),
        };
        Ok(world.insert(mpi).clone())
    }

    /// The number of this process, and the number of all processes.
    pub(super) fn world() -> Result<(usize, usize)> {
        let communicator = communicator()?;
        Ok((communicator.rank(), communicator.replicas()))
    }

    pub(super) fn finish() {
        drop(WORLD.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[cfg(not(feature = "mpi"))]
mod mpi {
    use std::sync::Arc;

    use crate::usage::Usage;
    use anyhow::{Result, bail};
    use kiln_parallel::Communicator;

    pub(super) fn communicator() -> Result<Arc<dyn Communicator>> {
        bail!(Usage("--replicas mpi needs a build with --features mpi, as docs/parallelism.md says".into()))
    }

    pub(super) fn world() -> Result<(usize, usize)> {
        communicator().map(|_| (0, 1))
    }

    pub(super) fn finish() {}
}
