//! The points of a step at which it is observed and can fail, and its result.

use kiln_recovery::Failure;

/// A point of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Boundary {
    /// Before a micro-batch is copied to the device and its forward pass begins.
    CopyIn,
    /// After the forward pass of a micro-batch, before its backward pass.
    Forward,
    /// After the backward pass of a micro-batch, when its gradients are added to the sum.
    Backward,
    /// After the running statistics of a micro-batch are taken.
    Accumulate,
    /// Before the norm of the complete gradients is read.
    Probe,
    /// Before a chunk of the parameters is updated.
    Update,
    /// Before updated parameters are handed to the other replicas, where the optimizer's state is divided among them.
    HandOut,
}

impl Boundary {
    /// Its name in reports of failures.
    pub fn name(self) -> &'static str {
        match self {
            Self::CopyIn => "copy-in",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Accumulate => "accumulate",
            Self::Probe => "probe",
            Self::Update => "update",
            Self::HandOut => "hand-out",
        }
    }
}

/// A function that is called at every boundary of a step. The step treats a failure that it returns as a failure of the device.
pub type Guard = Box<dyn Fn(Boundary) -> Result<(), Failure> + Send + Sync>;

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct StepReport {
    /// Number of the step, counted from 1.
    pub step: u64,
    /// The epoch the batch belongs to, counted from zero.
    pub epoch: u64,
    /// The loss before the update. Not finite when the forward pass overflowed in f16.
    pub loss: f64,
    /// Global norm of the gradients before clipping, without the loss scale. `None` if they were not finite.
    pub gradient_norm: Option<f64>,
    /// The learning rate of the step. A skipped step reports the rate that it would have used.
    pub learning_rate: f64,
    /// Whether the step left the model unchanged because a gradient overflowed.
    pub skipped: bool,
    /// The loss scale of the step.
    pub loss_scale: f64,
    /// Micro-batches that the batch was cut into, over all replicas.
    pub micro_batches: usize,
    /// Attempts that failed for lack of memory before this one. A failure on one replica counts on all, unless it was in the update of
    /// parameters, which each replica repeats by itself.
    pub failures: usize,
    /// Seconds that the failed attempts took.
    pub lost_seconds: f64,
    /// The most bytes at once of the attempt that succeeded, if a meter counts them.
    pub peak_bytes: Option<u64>,
}
