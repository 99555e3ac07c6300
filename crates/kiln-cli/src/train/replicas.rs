//! Runs of several replicas: in threads of this process, or in the processes that mpirun started.

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use burn::tensor::Device;
use kiln_parallel::{Communicator, Local, Nested};
use kiln_runs::CHECKPOINTS;
use kiln_training::{Checkpoints, Finish};

use super::build::{build, into_cli_error};
use super::drive::drive;
use super::initial_state::{saves_first, start_from};
use super::prepare::RunCommand;
use super::processes::communicator;
use super::resume::plans_again;
use crate::cli::CallArgs;
use crate::interrupt::Interrupt;
use crate::pipelines::{Pipeline, Replicas, Run};

/// The longest time that a replica waits for another one of its process while both wait for other processes: longer than these wait.
const INSIDE: Duration = Duration::from_secs(900);

/// Trains the run of a command on the number of replicas in its settings.
pub(crate) fn train<C: RunCommand>(command: &C) -> Result<ExitCode> {
    let (call, (run, device)) = (command.call(), command.prepare(0)?);
    let Some(replicas) = run.setup.settings.run.parallel.replicas.clone() else {
        return drive(run, &device, call, None);
    };
    let processes = if replicas.mpi { Some(communicator()?) } else { None };
    if processes.as_ref().is_some_and(|processes| processes.replicas() == 1) {
        tracing::warn!("--replicas mpi in one process: several are started by mpirun, as in mpirun -n 2");
    }
    let first_process = processes.as_ref().is_none_or(|processes| processes.rank() == 0);
    let join = |inside: Arc<dyn Communicator>| -> Result<Arc<dyn Communicator>> {
        Ok(match processes.clone() {
            Some(processes) if inside.replicas() == 1 => processes,
            Some(processes) => Arc::new(Nested::new(inside, processes)?),
            None => inside,
        })
    };
    let mut group = threads(&replicas)?.into_iter();
    let Some(first) = group.next() else { return drive(run, &device, call, None) };
    thread::scope(|scope| {
        let join = &join;
        let others = group.enumerate().map(|(index, inside)| {
            let failed = inside.clone();
            let work = move || {
                let communicator = or_leave(&inside.clone(), || join(inside))?;
                or_leave(&communicator.clone(), || follow(command.prepare(index + 1)?, call, communicator))
            };
            let started = thread::Builder::new().spawn_scoped(scope, work);
            or_leave(&failed, || started.context("cannot start a thread for a replica"))
        });
        let others = others.collect::<Result<Vec<_>>>()?;
        let outcome = or_leave(&first.clone(), || join(first)).and_then(|communicator| {
            or_leave(&communicator.clone(), || match first_process {
                true => drive(run, &device, call, Some(communicator)),
                false => follow((run, device), call, communicator),
            })
        });
        for other in others {
            // Its error is contained in the error of the first replica.
            let _ = other.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        outcome
    })
}

/// Connects the replicas of a process. Those on separate CUDA devices sum by NCCL, all others in the host's memory.
fn threads(Replicas { mpi, here }: &Replicas) -> Result<Vec<Arc<dyn Communicator>>> {
    let limit = if *mpi { INSIDE } else { Local::TIME_LIMIT };
    #[cfg(feature = "cuda")]
    if let crate::pipelines::Places::Devices(names) = here {
        let gpus = names.iter().map(|name| crate::gpu::gpu_index(name).map(|index| index as usize));
        if let Some(gpus) = gpus.collect::<Option<Vec<usize>>>() {
            let group = kiln_parallel::Nccl::group(&gpus)?;
            let shared =
                |replica: kiln_parallel::Nccl| Arc::new(replica.with_time_limit(limit)) as Arc<dyn Communicator>;
            return Ok(group.into_iter().map(shared).collect());
        }
    }
    let shared = |replica: Local| Arc::new(replica.with_time_limit(limit)) as Arc<dyn Communicator>;
    Ok(Local::group(here.count()).into_iter().map(shared).collect())
}

/// Runs a replica's part. If it fails, the other replicas are told the reason.
fn or_leave<C: Communicator + ?Sized, R>(communicator: &Arc<C>, work: impl FnOnce() -> Result<R>) -> Result<R> {
    work().inspect_err(|error| communicator.leave(&format!("{error:#}")))
}

/// Takes the steps of a run whose files another replica writes.
fn follow<P: Pipeline>(
    (run, device): (Run<P>, Device),
    call: &CallArgs,
    communicator: Arc<dyn Communicator>,
) -> Result<ExitCode> {
    let settings = &run.setup.settings.run;
    let keep = settings.keep;
    // A signal reaches every process of mpirun. Among threads only the first replica listens, and all stop if one is asked to.
    let listens = |replicas: &Replicas| replicas.mpi && settings.replica.index().is_multiple_of(replicas.here.count());
    let interrupt = match settings.parallel.replicas.as_ref().is_some_and(listens) {
        true => Interrupt::listen()?,
        false => Interrupt::default(),
    };
    let (mut trainer, setup) = build(run, &device, call, &interrupt, Some(communicator), None)?;
    let directory = call.resume.as_ref().map(|run| run.join(CHECKPOINTS));
    if directory.is_none() {
        start_from(&mut trainer, &setup.settings.run)?;
    }
    trainer.set_checkpoints(Checkpoints::new(directory.clone().unwrap_or_default(), keep)?);
    let _ = trainer.set_data(&setup.data.train)?;
    if directory.is_some() {
        if trainer.resume()?.is_none() {
            start_from(&mut trainer, &setup.settings.run)?;
        }
        if plans_again(&call.given) {
            trainer.save()?;
        }
    } else if saves_first(&setup.settings.run, setup.settings.compression.as_ref()) {
        // If the optimizer's state is divided, the first replica needs this one's part for its first checkpoint.
        trainer.save()?;
    }
    trainer.observe(move |_| match interrupt.requested() {
        true => std::ops::ControlFlow::Break(()),
        false => std::ops::ControlFlow::Continue(()),
    });
    Ok(match trainer.fit(&setup.data).map_err(into_cli_error)? {
        Finish::Complete | Finish::EndedEarly => ExitCode::SUCCESS,
        Finish::Stopped => ExitCode::from(130),
    })
}
