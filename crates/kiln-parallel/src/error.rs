//! The errors of this crate.

use crate::schedule::Action;

/// Errors of pipelines, replicas and schedules.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting has a value that is not accepted.
    #[error("{name} = {value}: expected {expected}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// No division of blocks into stages fits into the devices.
    #[error(
        "{blocks} blocks do not fit into {devices} devices: in the closest division, device {device} needs {needs} bytes and has {limit} \
         ({} too few)", needs.saturating_sub(*limit)
    )]
    DoesNotFit {
        /// The number of blocks.
        blocks: usize,
        /// The number of devices.
        devices: usize,
        /// The device that lacks the most bytes, counted from zero.
        device: usize,
        /// The bytes that its stage needs.
        needs: u64,
        /// The bytes that it has.
        limit: u64,
    },
    /// Some replicas did not join an operation within the time limit.
    #[error("replica {rank} waited {seconds} s in {operation} for {}", listed(missing))]
    Waited {
        /// The replica that waited.
        rank: usize,
        /// The operation that it waited in.
        operation: &'static str,
        /// The replicas that did not come.
        missing: Vec<usize>,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// A replica left the group.
    #[error("replica {rank} has left: {reason}")]
    Left {
        /// The replica that left.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// The group is broken by an earlier error.
    #[error("the group of replicas has ended: {reason}")]
    Broken {
        /// The earlier error.
        reason: String,
    },
    /// Replicas brought different operations or tensors of different lengths.
    #[error("replica {rank} brought {found} to {operation}, expected {expected} as replica {first} did")]
    Lengths {
        /// The replica whose values do not fit.
        rank: usize,
        /// The operation.
        operation: &'static str,
        /// The operation or the lengths that it brought.
        found: String,
        /// The replica that it was compared with.
        first: usize,
        /// The operation or the lengths that replica `first` brought.
        expected: String,
    },
    /// A number that all replicas must share differs between them.
    #[error("the replicas differ in {what}: {}", each(values))]
    Differs {
        /// The name of the number.
        what: String,
        /// The number of each replica, in the order of the ranks.
        values: Vec<u64>,
    },
    /// A device or the network failed in an operation.
    #[error("{operation} failed: {reason}")]
    Transfer {
        /// The operation.
        operation: &'static str,
        /// The message of the device or the network.
        reason: String,
    },
    /// A forward pass did not end as many stages as the pipeline has.
    #[error("the forward pass of micro-batch {micro_batch} came to a stage {found}, expected {expected} stages")]
    StageCount {
        /// The micro-batch.
        micro_batch: usize,
        /// The stages that the forward pass came to.
        found: usize,
        /// The stages of the pipeline.
        expected: usize,
    },
    /// A tensor that needs a gradient is on a backend that this build cannot hand gradients back on.
    #[error(
        "a tensor that goes to the next stage is on {device}: expected the CPU (feature `flex`) or a GPU (feature `cube`)"
    )]
    Backend {
        /// The tensor's device.
        device: String,
    },
    /// A later stage has used a tensor of a stage, and its graph, without [`StageBoundary::carry`](crate::StageBoundary::carry).
    #[error(
        "a tensor of stage {stage} reached a later stage of micro-batch {micro_batch} without the pipeline, expected every tensor with a \
         gradient to go from stage to stage by `carry`"
    )]
    Bypassed {
        /// The stage whose tensor it is.
        stage: usize,
        /// The micro-batch.
        micro_batch: usize,
    },
    /// A stage waited too long for another one.
    #[error("stage {stage} waited {seconds} s in {action} for stage {other}, which is {}", place(*doing))]
    Stalled {
        /// The stage that waited.
        stage: usize,
        /// The action that it could not begin.
        action: Action,
        /// The time limit in seconds.
        seconds: f64,
        /// The stage that it waited for.
        other: usize,
        /// The action that this stage was in, if any.
        doing: Option<Action>,
    },
    /// The operating system has no thread left.
    #[error("a thread could not be started: {reason}")]
    Thread {
        /// The message of the operating system.
        reason: String,
    },
}

/// "in forward 3" or "between two actions".
fn place(doing: Option<Action>) -> String {
    doing.map_or_else(|| "between two actions".into(), |action| format!("in {action}"))
}

impl Error {
    pub(crate) fn invalid(field: &'static str, value: impl ToString, expected: &'static str) -> Self {
        Self::InvalidSetting { name: field, value: value.to_string(), expected }
    }

    /// The error of later operations in a group that this error has ended.
    pub(crate) fn afterwards(&self) -> Self {
        match self {
            Self::Left { .. } | Self::Broken { .. } => self.clone(),
            error => Self::Broken { reason: error.to_string() },
        }
    }
}

/// "replica 2" or "replicas 1 and 3".
fn listed(ranks: &[usize]) -> String {
    match ranks {
        [] => "no replica".into(),
        [only] => format!("replica {only}"),
        [before @ .., last] => {
            let before: Vec<String> = before.iter().map(usize::to_string).collect();
            format!("replicas {} and {last}", before.join(", "))
        }
    }
}

/// "replica 0 has 5, replica 1 has 6".
fn each(values: &[u64]) -> String {
    let values = values.iter().enumerate().map(|(rank, value)| format!("replica {rank} has {value}"));
    values.collect::<Vec<_>>().join(", ")
}
