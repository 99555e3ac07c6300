//! Replicas in processes, on one machine or several, by MPI.

mod message;
mod rounds;
mod transfer;

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::panicking;
use std::time::Duration;

use burn::tensor::{Device, Tensor, TensorData};
use mpi::Threading;
use mpi::environment::initialize_with_threading;
use mpi::topology::Communicator as _;

use self::rounds::{Contributions, EndRequest, Job, Round, Rounds};
use crate::error::Error;
use crate::reduce::communicator::{Communicator, check_gather, check_parts, check_values};
use crate::reduce::pieces::{cut, even_lengths, length, lengths};
use crate::reduce::rendezvous::Call;

/// A replica in a process that `mpirun` started, on this machine or another. Ranks are those of `MPI_COMM_WORLD`.
///
/// A sum is a reduce-scatter by point-to-point messages, added in the order of the ranks on the host, and an all-gather. All ranks get the
/// same bits in every run, which `MPI_Allreduce` does not promise. Each rank sends and receives `2 (n - 1) / n` times the values. Values of
/// other devices than the CPU are copied to the host and back.
///
/// A thread of its own calls MPI (`MPI_THREAD_FUNNELED`) and tests requests until they are complete or the time limit has passed.
///
/// # How a group ends
/// - A replica that is dropped leaves the group, then waits for the others to be dropped too (`MPI_Finalize`), at most for the time limit.
/// - After [`Error::Waited`] MPI is not finalised. The process should end with an error: `mpirun` then ends the others.
/// - When a process is killed, `mpirun` ends the others and names its rank.
/// - An error of MPI itself ends the process with MPI's message (`MPI_ERRORS_ARE_FATAL`).
pub struct Mpi {
    rank: usize,
    replicas: usize,
    time_limit: Duration,
    end_request: EndRequest,
    /// None while the replica is dropped.
    jobs: Option<Sender<Job>>,
    /// Ends when MPI is finalised, or never will be.
    running: Mutex<Receiver<()>>,
    /// Held during an operation, so that a replica takes part in one operation at a time.
    turn: Mutex<()>,
}

impl Mpi {
    /// Initialises MPI, which is possible once in a process. A process that `mpirun` did not start is a group of one. Operations wait for
    /// the other processes at most `time_limit`.
    ///
    /// # Errors
    /// [`Error::Transfer`] when MPI was initialised before, or does not allow that a thread calls it.
    pub fn init(time_limit: Duration) -> Result<Self, Error> {
        Self::init_with_pieces(time_limit, i32::MAX as usize)
    }

    /// [`init`](Self::init) with a limit for the size of messages: values and messages are sent in pieces of at most `elements` values or
    /// bytes, from 1 to 2,147,483,647, which is the most that MPI can count. The limits of processes may differ.
    ///
    /// # Errors
    /// Those of [`init`](Self::init), and [`Error::InvalidSetting`] for another number of elements.
    pub fn init_with_pieces(time_limit: Duration, elements: usize) -> Result<Self, Error> {
        let piece = NonZeroUsize::new(elements).filter(|piece| i32::try_from(piece.get()).is_ok());
        let piece =
            piece.ok_or_else(|| Error::invalid("number of elements of a piece", elements, "from 1 to 2147483647"))?;
        let (started, rank_and_size) = channel();
        let (jobs, incoming) = channel();
        let (running, ended) = channel();
        let end_request = EndRequest::default();
        let shared = end_request.clone();
        let serve = move || {
            let Some((universe, threading)) = initialize_with_threading(Threading::Funneled) else {
                let _ = started.send(Err(failed("init", "MPI can be initialised only once in a process")));
                return;
            };
            if threading < Threading::Funneled {
                let _ = started.send(Err(failed("init", "this MPI library was built without threads")));
                return;
            }
            let world = universe.world();
            let (rank, replicas) = (world.rank() as usize, world.size() as usize);
            let _ = started.send(Ok((rank, replicas)));
            let rounds = Rounds {
                universe,
                world,
                rank,
                replicas,
                time_limit,
                piece,
                end_request: shared,
                running: Some(running),
                jobs: incoming,
                round: 0,
                ends: vec![],
                over: None,
                waited: false,
            };
            rounds.serve();
        };
        let spawned = std::thread::Builder::new().name("mpi".into()).spawn(serve);
        spawned.map_err(|e| failed("init", &e.to_string()))?;
        let (rank, replicas) = rank_and_size.recv().map_err(|_| gone("init"))??;
        let (running, turn) = (Mutex::new(ended), Mutex::new(()));
        Ok(Self { rank, replicas, time_limit, end_request, jobs: Some(jobs), running, turn })
    }

    /// Asks the thread for a round.
    fn meet(&self, round: Round) -> Result<Contributions, Error> {
        let operation = round.call.operation;
        let (reply, outcome) = channel();
        let jobs = self.jobs.as_ref().ok_or_else(|| gone(operation))?;
        jobs.send(Job::Round(round, reply)).map_err(|_| gone(operation))?;
        outcome.recv().map_err(|_| gone(operation))?
    }

    /// Ends the group because of an error of this replica's.
    fn end(&self, error: Error) {
        self.end_request.set(error);
        if let Some(jobs) = &self.jobs {
            // When the thread is gone, there is nobody to tell.
            let _ = jobs.send(Job::Look);
        }
    }

    /// Ends the group if this fails, so that the others do not wait.
    fn check<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| self.end(error.clone()))
    }

    /// The error of a group of one replica that has ended.
    fn alone(&self) -> Result<(), Error> {
        self.end_request.get().map_or(Ok(()), |error| Err(error.afterwards()))
    }

    /// The values on the host.
    fn to_host(&self, values: Tensor<1>, operation: &'static str) -> Result<Vec<f32>, Error> {
        let data = values.try_into_data().map_err(|e| failed(operation, &e.to_string()));
        let values = data.and_then(|data| data.try_into_vec::<f32>().map_err(|e| failed(operation, &format!("{e:?}"))));
        self.check(values)
    }

    /// One list of values for each replica, one after the other: the sum of those at `rank`.
    fn sum_of_own(&self, values: Vec<f32>, lengths: &[usize], operation: &'static str) -> Result<Vec<f32>, Error> {
        let contributions = self.meet(Round {
            call: Call { operation, lengths: lengths.to_vec() },
            message: vec![],
            values,
            parts: ranges(lengths),
            incoming: vec![lengths[self.rank]; self.replicas],
        })?;
        let mut values = contributions.values;
        let (sum, others) = values.split_at_mut(lengths[self.rank]);
        for values in others.chunks_exact(sum.len().max(1)) {
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        values.truncate(lengths[self.rank]);
        Ok(values)
    }

    /// The values of all replicas, one after the other.
    fn all(&self, own: Vec<f32>, lengths: &[usize], operation: &'static str) -> Result<Vec<f32>, Error> {
        let contributions = self.meet(Round {
            call: Call { operation, lengths: lengths.to_vec() },
            message: vec![],
            parts: vec![0..own.len(); self.replicas],
            values: own,
            incoming: lengths.to_vec(),
        })?;
        Ok(contributions.values)
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn replicas(&self) -> usize {
        self.replicas
    }

    fn exchange(&self, message: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let _turn = self.turn.lock();
        let contributions = self.meet(Round {
            call: Call { operation: "exchange", lengths: vec![] },
            message: message.to_vec(),
            values: vec![],
            parts: vec![0..0; self.replicas],
            incoming: vec![0; self.replicas],
        })?;
        Ok(contributions.messages)
    }

    fn all_reduce(&self, values: Tensor<1>) -> Result<Tensor<1>, Error> {
        let _turn = self.turn.lock();
        self.check(check_values(&values))?;
        if self.replicas == 1 {
            return self.alone().map(|()| values);
        }
        let (device, lengths) = (values.device(), even_lengths(length(&values), self.replicas));
        let values = self.to_host(values, "all_reduce")?;
        let own = self.sum_of_own(values, &lengths, "all_reduce")?;
        Ok(to_device(self.all(own, &lengths, "all_reduce")?, &device))
    }

    fn reduce_scatter(&self, mut parts: Vec<Tensor<1>>) -> Result<Tensor<1>, Error> {
        let _turn = self.turn.lock();
        self.check(check_parts(&parts, self.replicas))?;
        if self.replicas == 1 {
            return self.alone().map(|()| parts.remove(0));
        }
        let (device, lengths) = (parts[self.rank].device(), lengths(&parts));
        let mut values = Vec::with_capacity(lengths.iter().sum());
        for part in parts {
            values.extend(self.to_host(part, "reduce_scatter")?);
        }
        Ok(to_device(self.sum_of_own(values, &lengths, "reduce_scatter")?, &device))
    }

    fn all_gather(&self, values: Tensor<1>, lengths: &[usize]) -> Result<Vec<Tensor<1>>, Error> {
        let _turn = self.turn.lock();
        self.check(check_gather(&values, lengths, self.rank, self.replicas))?;
        if self.replicas == 1 {
            return self.alone().map(|()| vec![values]);
        }
        let device = values.device();
        let values = self.to_host(values, "all_gather")?;
        let all = to_device(self.all(values, lengths, "all_gather")?, &device);
        Ok(cut(&all, lengths))
    }

    fn leave(&self, reason: &str) {
        self.end(Error::Left { rank: self.rank, reason: reason.to_owned() });
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if panicking() {
            self.leave("its thread panicked");
        }
        drop(self.jobs.take());
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nothing is ever sent: this waits for the thread to let go, or for the time limit.
        let _ = running.recv_timeout(self.time_limit);
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, replicas, time_limit, .. } = self;
        f.debug_struct("Mpi").field("rank", rank).field("replicas", replicas).field("time_limit", time_limit).finish()
    }
}

/// Ranges of these lengths, one after the other.
fn ranges(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |length: &usize| {
        let start = end;
        end += length;
        start..end
    };
    lengths.iter().map(range).collect()
}

fn to_device(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}

fn failed(operation: &'static str, reason: &str) -> Error {
    Error::Transfer { operation, reason: reason.to_owned() }
}

/// The thread that owns MPI ends early only by a panic.
fn gone(operation: &'static str) -> Error {
    failed(operation, "the thread that calls MPI has ended")
}
