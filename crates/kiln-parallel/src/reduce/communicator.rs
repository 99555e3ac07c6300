//! The operations that replicas take part in together.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{DType, Tensor};

use super::pieces::length;
use crate::error::Error;

/// Collective operations between the replicas of a model. All replicas call the same operations in the same order, each with the values of
/// its own. All replicas get the same bits.
///
/// An operation that a replica does not join within the time limit ends with [`Error::Waited`] on the others, which names it. After an
/// error the group is broken: every later operation of every replica ends with an error at once. When a replica ends in the middle of an
/// operation, the operation may succeed on some replicas and fail on others. Work that must happen on all replicas or on none needs an
/// [agreement](super::agreement::agree) before it.
///
/// Tensors have one dimension, are f32, have no autodiff graph, and stay on the caller's device.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// The number of this replica, counted from zero.
    fn rank(&self) -> usize;

    /// The number of replicas.
    fn replicas(&self) -> usize;

    /// The number of replicas in this process, which share its heap and burn's random numbers. A communicator of threads must say it:
    /// replicas that draw random numbers while one waits for another would wait for ever.
    fn in_this_process(&self) -> usize {
        1
    }

    /// Sends `message` to all replicas. Returns the messages of all, in the order of their ranks. Messages are small and may differ in
    /// length.
    ///
    /// # Errors
    /// [`Error::Waited`], [`Error::Left`], [`Error::Broken`]. [`Error::Lengths`] when replicas called different operations.
    fn exchange(&self, message: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// The sum of `values` over all replicas, added in the order of the ranks: `((v0 + v1) + v2) + ...`.
    ///
    /// # Errors
    /// Those of [`exchange`](Self::exchange). [`Error::Lengths`] for tensors of different lengths, [`Error::InvalidSetting`] for another
    /// dtype than f32.
    fn all_reduce(&self, values: Tensor<1>) -> Result<Tensor<1>, Error>;

    /// Sums over all replicas, and returns the part of the sum that belongs to this replica. `parts[r]` is what this replica adds to the
    /// part of replica `r`. Sums are added in the order of the ranks. Parts may have different lengths, 0 included.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce). [`Error::InvalidSetting`] when there is not one part for each replica.
    fn reduce_scatter(&self, parts: Vec<Tensor<1>>) -> Result<Tensor<1>, Error>;

    /// Returns the values of all replicas, in the order of their ranks. `lengths[r]` is the number of values of replica `r`.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce). [`Error::InvalidSetting`] when `lengths` does not have the length of `values` at this
    /// replica's rank.
    fn all_gather(&self, values: Tensor<1>, lengths: &[usize]) -> Result<Vec<Tensor<1>>, Error>;

    /// Leaves the group for good, because of `reason`. The others learn of it at their next operation, which ends with [`Error::Left`].
    /// Does not wait for anyone.
    fn leave(&self, reason: &str);
}

impl<C: Communicator + ?Sized> Communicator for Arc<C> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn replicas(&self) -> usize {
        (**self).replicas()
    }

    fn in_this_process(&self) -> usize {
        (**self).in_this_process()
    }

    fn exchange(&self, message: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        (**self).exchange(message)
    }

    fn all_reduce(&self, values: Tensor<1>) -> Result<Tensor<1>, Error> {
        (**self).all_reduce(values)
    }

    fn reduce_scatter(&self, parts: Vec<Tensor<1>>) -> Result<Tensor<1>, Error> {
        (**self).reduce_scatter(parts)
    }

    fn all_gather(&self, values: Tensor<1>, lengths: &[usize]) -> Result<Vec<Tensor<1>>, Error> {
        (**self).all_gather(values, lengths)
    }

    fn leave(&self, reason: &str) {
        (**self).leave(reason);
    }
}

/// Checks the arguments of [`reduce_scatter`](Communicator::reduce_scatter).
pub(super) fn check_parts(parts: &[Tensor<1>], replicas: usize) -> Result<(), Error> {
    if parts.len() != replicas {
        return Err(Error::invalid("number of parts", parts.len(), "one for each replica"));
    }
    parts.iter().try_for_each(check_values)
}

/// Checks the arguments of [`all_gather`](Communicator::all_gather).
pub(super) fn check_gather(values: &Tensor<1>, lengths: &[usize], rank: usize, replicas: usize) -> Result<(), Error> {
    if lengths.len() != replicas {
        return Err(Error::invalid("number of lengths", lengths.len(), "one for each replica"));
    }
    if lengths[rank] != length(values) {
        let expected = "the length that the list has for this replica";
        return Err(Error::invalid("number of elements of all_gather", length(values), expected));
    }
    check_values(values)
}

/// Checks the argument of [`all_reduce`](Communicator::all_reduce).
pub(super) fn check_values(values: &Tensor<1>) -> Result<(), Error> {
    match values.dtype() {
        DType::F32 => Ok(()),
        dtype => Err(Error::invalid("dtype of values that replicas exchange", format!("{dtype:?}"), "F32")),
    }
}
