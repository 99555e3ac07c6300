//! Replicas on threads of one process.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::panicking;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;

use super::communicator::{Communicator, check_gather, check_parts, check_values};
use super::pieces::{cut, even_lengths, joined, length, lengths, summed};
use super::rendezvous::{Call, Rendezvous};
use crate::error::Error;

/// A replica on a thread of one process, with a device of its own or the same device as others.
///
/// A sum is computed in pieces, one on each replica: a reduce-scatter, then an all-gather. Each replica thus sends and receives
/// `2 (n - 1) / n` times the values, and adds `(n - 1) / n` of them. Tensors go between devices by `to_device`; on a shared device nothing
/// is copied but the result. A group of one replica returns what it is given.
///
/// A replica that is dropped, or that panics in an operation, leaves the group.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kiln_parallel::{Communicator, Local};
///
/// std::thread::scope(|scope| {
///     for replica in Local::group(2) {
///         scope.spawn(move || {
///             let own = Tensor::<1>::full([3], replica.rank() as f32 + 1.0, &Device::flex());
///             let sum = replica.all_reduce(own)?;
///             assert_eq!(sum.into_data().try_to_vec::<f32>().ok(), Some(vec![3.0; 3]));
///             Ok::<(), kiln_parallel::Error>(())
///         });
///     }
/// });
/// ```
pub struct Local {
    rank: usize,
    replicas: usize,
    time_limit: Duration,
    group: Arc<Group>,
    /// Held during an operation, so that a replica takes part in one operation at a time.
    turn: Mutex<()>,
}

/// The state that the replicas of a group share.
struct Group {
    rendezvous: Mutex<Rendezvous<Contribution>>,
    changed: Condvar,
}

/// The values of a replica for a round.
#[derive(Default)]
struct Contribution {
    message: Vec<u8>,
    tensors: Vec<Tensor<1>>,
}

impl Local {
    /// How long a replica waits for the others unless [`with_time_limit`](Self::with_time_limit) says otherwise.
    pub const TIME_LIMIT: Duration = Duration::from_secs(600);

    /// The replicas of a group, one for each thread.
    pub fn group(replicas: usize) -> Vec<Self> {
        let group = Arc::new(Group { rendezvous: Mutex::new(Rendezvous::new(replicas)), changed: Condvar::new() });
        let replica =
            |rank| Self { rank, replicas, time_limit: Self::TIME_LIMIT, group: group.clone(), turn: Mutex::new(()) };
        (0..replicas).map(replica).collect()
    }

    /// Sets the longest time that this replica waits for the others in an operation. Default: [`TIME_LIMIT`](Self::TIME_LIMIT).
    pub fn with_time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Brings a contribution to the next round, and waits for those of the others.
    fn meet(
        &self,
        operation: &'static str,
        lengths: Vec<usize>,
        contribution: Contribution,
    ) -> Result<Arc<[Contribution]>, Error> {
        let deadline = Instant::now().checked_add(self.time_limit);
        let mut rendezvous = locked(&self.group.rendezvous);
        let joined = rendezvous.join(self.rank, Call { operation, lengths }, contribution);
        self.group.changed.notify_all();
        let round = joined?;
        loop {
            if let Some(outcome) = rendezvous.outcome(self.rank, round) {
                return outcome;
            }
            // A deadline beyond the range of the clock is none.
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let error = rendezvous.expire(self.rank, self.time_limit.as_secs());
                self.group.changed.notify_all();
                return Err(error);
            }
            let waited = self.group.changed.wait_timeout(rendezvous, left);
            rendezvous = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until all replicas call this operation for values of this length.
    #[cfg(feature = "cuda")]
    pub(super) fn meet_for(&self, operation: &'static str, length: usize) -> Result<(), Error> {
        let _turn = locked(&self.turn);
        self.meet(operation, vec![length], Contribution::default()).map(drop)
    }

    /// Breaks the group if what this replica brings does not fit, so that the others do not wait.
    pub(super) fn check(&self, fits: Result<(), Error>) -> Result<(), Error> {
        fits.inspect_err(|error| {
            locked(&self.group.rendezvous).refuse(self.rank, error);
            self.group.changed.notify_all();
        })
    }

    /// The error of a group of one replica that has ended.
    fn alone(&self) -> Result<(), Error> {
        locked(&self.group.rendezvous).ended().map_or(Ok(()), Err)
    }

    /// Hands `parts[r]` to replica `r`. Returns the sum of the parts that all replicas have for this one.
    fn sum_of_own(&self, parts: Vec<Tensor<1>>, operation: &'static str) -> Result<Tensor<1>, Error> {
        let device = parts[self.rank].device();
        let contributions =
            self.meet(operation, lengths(&parts), Contribution { tensors: parts, ..Contribution::default() })?;
        Ok(summed(contributions.iter().map(|contribution| contribution.tensors[self.rank].clone()), &device))
    }

    /// The tensors of all replicas, on the device of this replica's.
    fn all(&self, own: Tensor<1>, lengths: &[usize], operation: &'static str) -> Result<Vec<Tensor<1>>, Error> {
        let device = own.device();
        let contributions =
            self.meet(operation, lengths.to_vec(), Contribution { tensors: vec![own], ..Contribution::default() })?;
        let tensors = contributions.iter().flat_map(|contribution| &contribution.tensors);
        Ok(tensors.map(|tensor| tensor.clone().to_device(&device)).collect())
    }
}

impl Communicator for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn replicas(&self) -> usize {
        self.replicas
    }

    fn in_this_process(&self) -> usize {
        self.replicas
    }

    fn exchange(&self, message: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let _turn = locked(&self.turn);
        let contribution = Contribution { message: message.to_vec(), ..Contribution::default() };
        let contributions = self.meet("exchange", vec![], contribution)?;
        Ok(contributions.iter().map(|contribution| contribution.message.clone()).collect())
    }

    fn all_reduce(&self, values: Tensor<1>) -> Result<Tensor<1>, Error> {
        let _turn = locked(&self.turn);
        self.check(check_values(&values))?;
        if self.replicas == 1 {
            return self.alone().map(|()| values);
        }
        let _leave = LeaveOnPanic(self);
        let (device, lengths) = (values.device(), even_lengths(length(&values), self.replicas));
        let parts = cut(&values, &lengths);
        drop(values);
        let own = self.sum_of_own(parts, "all_reduce")?;
        Ok(joined(self.all(own, &lengths, "all_reduce")?, &device))
    }

    fn reduce_scatter(&self, mut parts: Vec<Tensor<1>>) -> Result<Tensor<1>, Error> {
        let _turn = locked(&self.turn);
        self.check(check_parts(&parts, self.replicas))?;
        if self.replicas == 1 {
            return self.alone().map(|()| parts.remove(0));
        }
        let _leave = LeaveOnPanic(self);
        self.sum_of_own(parts, "reduce_scatter")
    }

    fn all_gather(&self, values: Tensor<1>, lengths: &[usize]) -> Result<Vec<Tensor<1>>, Error> {
        let _turn = locked(&self.turn);
        self.check(check_gather(&values, lengths, self.rank, self.replicas))?;
        if self.replicas == 1 {
            return self.alone().map(|()| vec![values]);
        }
        let _leave = LeaveOnPanic(self);
        self.all(values, lengths, "all_gather")
    }

    fn leave(&self, reason: &str) {
        locked(&self.group.rendezvous).leave(self.rank, reason);
        self.group.changed.notify_all();
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.leave(if panicking() { "its thread panicked" } else { "its communicator was dropped" });
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, replicas, time_limit, .. } = self;
        f.debug_struct("Local").field("rank", rank).field("replicas", replicas).field("time_limit", time_limit).finish()
    }
}

/// Leaves the group when a device fails by a panic in the middle of an operation, in which the others wait.
pub(super) struct LeaveOnPanic<'a>(pub(super) &'a Local);

impl Drop for LeaveOnPanic<'_> {
    fn drop(&mut self) {
        if panicking() {
            self.0.leave("it panicked in an operation");
        }
    }
}

/// A panic of another replica leaves the state whole: nothing in this file panics while it holds a lock.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// A caller may catch the panic of a device, as a retry does, and keep the replica.
    #[test]
    fn a_replica_whose_device_panics_in_an_operation_leaves_at_once() {
        let group = Local::group(2);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let _leave = LeaveOnPanic(&group[1]);
            panic!("out of memory");
        }));
        assert!(panic.is_err());
        let left = Error::Left { rank: 1, reason: "it panicked in an operation".into() };
        assert_eq!(group[0].exchange(&[]), Err(left.clone()));
        assert_eq!(group[1].exchange(&[]), Err(left));
    }
}
