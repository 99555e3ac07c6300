//! Replicas on several CUDA devices of one process, whose sums NCCL computes.

use std::time::Duration;

use burn::tensor::distributed::{ReduceOperation, all_reduce};
use burn::tensor::{Device, Tensor};

use super::communicator::{Communicator, check_values};
use super::local::{LeaveOnPanic, Local};
use super::pieces::length;
use crate::error::Error;

/// A replica on a thread of one process, with a CUDA device of its own. Its [`all_reduce`](Communicator::all_reduce) is burn's, which calls
/// NCCL. The other operations are those of [`Local`].
///
/// NCCL chooses the order of a sum. All replicas get the same bits, but not those of the sum in the order of the ranks, and a run with
/// another number or kind of devices may get others. [`Local`] on the same devices sums in the order of the ranks.
///
/// NCCL has no time limit. The replicas therefore meet before each sum: one that is late or has left ends the operation with an error
/// before NCCL begins. A device that fails after that leaves the others waiting. Where the NCCL library is missing, burn's all-reduce
/// panics.
#[derive(Debug)]
pub struct Nccl {
    local: Local,
    /// The devices of all replicas, in the order of their ranks.
    devices: Vec<Device>,
}

impl Nccl {
    /// The replicas of a group, one for each of these CUDA devices, by the numbers that CUDA gives them, and each for a thread of its own.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a device that two replicas would share, which NCCL refuses.
    pub fn group(devices: &[usize]) -> Result<Vec<Self>, Error> {
        if let Some(twice) = devices.iter().enumerate().find(|(at, device)| devices[..*at].contains(device)) {
            let value = format!("{} twice", twice.1);
            return Err(Error::invalid("CUDA devices of replicas", value, "a device of its own for each replica"));
        }
        let devices: Vec<Device> = devices.iter().map(|device| Device::cuda(*device)).collect();
        let replicas = Local::group(devices.len()).into_iter();
        Ok(replicas.map(|local| Self { local, devices: devices.clone() }).collect())
    }

    /// The CUDA device of this replica.
    pub fn device(&self) -> Device {
        self.devices[self.rank()].clone()
    }

    /// Sets the longest time that this replica waits for the others before each operation.
    pub fn with_time_limit(mut self, time_limit: Duration) -> Self {
        self.local = self.local.with_time_limit(time_limit);
        self
    }
}

impl Communicator for Nccl {
    fn rank(&self) -> usize {
        self.local.rank()
    }

    fn replicas(&self) -> usize {
        self.local.replicas()
    }

    fn exchange(&self, message: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.local.exchange(message)
    }

    fn all_reduce(&self, values: Tensor<1>) -> Result<Tensor<1>, Error> {
        // A group of one has nothing to sum, and NCCL refuses empty tensors.
        if self.replicas() == 1 || length(&values) == 0 {
            return self.local.all_reduce(values);
        }
        self.local.check(check_values(&values))?;
        self.local.meet_for("all_reduce by NCCL", length(&values))?;
        let _leave = LeaveOnPanic(&self.local);
        let device = values.device();
        let sum = all_reduce(values.to_device(&self.device()), ReduceOperation::Sum, self.devices.clone());
        Ok(sum.resolve().to_device(&device))
    }

    fn reduce_scatter(&self, parts: Vec<Tensor<1>>) -> Result<Tensor<1>, Error> {
        self.local.reduce_scatter(parts)
    }

    fn all_gather(&self, values: Tensor<1>, lengths: &[usize]) -> Result<Vec<Tensor<1>>, Error> {
        self.local.all_gather(values, lengths)
    }

    fn leave(&self, reason: &str) {
        self.local.leave(reason);
    }
}
