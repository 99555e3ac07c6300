//! The result of one step.

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
