/// Why a segment cannot be checkpointed, or its replay not be used, or a plan not be made.
///
/// What goes wrong in the backward pass cannot be returned through burn and is a panic with the same message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The closure uses a tracked tensor that is neither an input nor a parameter of the module.
    #[error(
        "segment {segment}: its closure captures a tracked tensor, expected every tensor that needs a gradient among the \
         inputs or the module's parameters"
    )]
    Captures {
        /// Name of the segment, by default where it was written.
        segment: String,
    },
    /// A parameter was computed from others, so that its gradient has somewhere to go on to.
    #[error("segment {segment}: parameter '{path}' is the result of tracked operations, expected a leaf")]
    NotALeaf {
        /// Name of the segment.
        segment: String,
        /// The parameter.
        path: String,
    },
    /// A custom backward pass needs the backend's types, and this build knows two.
    #[error(
        "segment {segment}: its tensors are on {device}, expected burn's Flex or, with the feature `cuda`, a CubeCL backend, one and \
         the same for all"
    )]
    Backend {
        /// Name of the segment.
        segment: String,
        /// The device, as burn prints it.
        device: String,
    },
    /// The replay gave another number of tensors.
    #[error("segment {segment}: its replay gave {found} tensors, expected {expected} as in the first pass")]
    ReplayCount {
        /// Name of the segment.
        segment: String,
        /// Tensors of the replay.
        found: usize,
        /// Tensors of the first pass.
        expected: usize,
    },
    /// The replay gave a tensor of another shape, dtype or device.
    #[error(
        "segment {segment}: output {index} of its replay is {found}, expected {expected} as in the first pass: the closure \
         must compute the same both times"
    )]
    Replay {
        /// Name of the segment.
        segment: String,
        /// Which output, counted from zero.
        index: usize,
        /// Shape, dtype and device of the replay.
        found: String,
        /// Those of the first pass.
        expected: String,
    },
    /// A saved input could not be moved to the host.
    #[error("segment {segment}: a saved input could not be moved to the host: {reason}")]
    Offload {
        /// Name of the segment.
        segment: String,
        /// The device's message.
        reason: String,
    },
    /// A segment length of zero.
    #[error("segments of 0 blocks, expected at least 1")]
    EmptySegment,
    /// Segments that leave a gap, overlap, or hold nothing.
    #[error(
        "segment {index} of the plan is {from}..{to}, expected it to begin at {begins} and hold at least one block"
    )]
    InvalidPlan {
        /// Which segment, counted from zero.
        index: usize,
        /// Its first block.
        from: usize,
        /// The block after its last.
        to: usize,
        /// Where the segment before it ends.
        begins: usize,
    },
    /// A plan for another number of blocks.
    #[error("the plan is for {plan} blocks, the chain has {chain}")]
    PlanLength {
        /// Blocks of the plan.
        plan: usize,
        /// Blocks of the chain.
        chain: usize,
    },
    /// No plan stays within the budget.
    #[error("no plan stays within {budget} bytes, the least possible peak is {least} bytes")]
    Infeasible {
        /// What was asked for.
        budget: u64,
        /// What would be enough.
        least: u64,
    },
    /// Costs that no chain has.
    #[error("the {field} is {value}, expected {expected}")]
    InvalidCost {
        /// What of [`ChainCost`](crate::ChainCost).
        field: &'static str,
        /// Its value.
        value: f64,
        /// What would be accepted.
        expected: &'static str,
    },
}
