//! The points of a step at which it can be observed and can fail.

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
