//! The errors of this crate.

/// Reasons why a segment cannot be checkpointed or a plan cannot be made.
///
/// burn cannot return an error from a backward pass: there, the error's message is that of a panic.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The closure uses a tracked tensor that is neither an input nor a parameter of the module.
    #[error(
        "segment {segment}: its closure captures a tracked tensor, expected every tensor that needs a gradient among the \
         inputs or the module's parameters"
    )]
    Captures {
        /// Name of the segment; by default its place in the source.
        segment: String,
    },
    /// A parameter was computed from other tracked tensors, so its gradient would have to flow on to these.
    #[error("segment {segment}: parameter '{path}' is the result of tracked operations, expected a leaf")]
    NotALeaf {
        /// Name of the segment.
        segment: String,
        /// The parameter.
        path: String,
    },
    /// The tensors are on a backend without a custom backward pass in this build.
    #[error(
        "segment {segment}: its tensors are on {device}, expected all of them on burn's Flex backend or, with the feature `cube`, on \
         one CubeCL backend"
    )]
    Backend {
        /// Name of the segment.
        segment: String,
        /// The device, as burn prints it.
        device: String,
    },
    /// The second pass returned another number of tensors than the first.
    #[error("segment {segment}: its second pass returned {found} tensors, expected {expected} as in the first pass")]
    ReplayCount {
        /// Name of the segment.
        segment: String,
        /// Tensors of the second pass.
        found: usize,
        /// Tensors of the first pass.
        expected: usize,
    },
    /// The second pass returned a tensor of another shape, dtype or device than the first.
    #[error(
        "segment {segment}: output {index} of its second pass is {found}, expected {expected} as in the first pass: the \
         closure must compute the same both times"
    )]
    Replay {
        /// Name of the segment.
        segment: String,
        /// Number of the output, counted from zero.
        index: usize,
        /// Shape, dtype and device in the second pass.
        found: String,
        /// Shape, dtype and device in the first pass.
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
    /// A store cannot be read or written.
    #[error("the store cannot be used: {path}: {reason}")]
    Store {
        /// The file or the parameter.
        path: String,
        /// The message of the system, or what is wrong.
        reason: String,
    },
    /// A sum of gradients in a store cannot be had.
    #[error(transparent)]
    Sums(#[from] kiln_operations::SumError),
    /// A store that is empty, or has other parameters or the state of another optimizer.
    #[error("the store does not fit: {reason}")]
    StoreMismatch {
        /// What it has, and what is expected.
        reason: String,
    },
    /// A plan that runs a block in memory whose parameters are in a store.
    #[error(
        "the plan is '{plan}', and the parameters of block {block} are in a store: expected a plan that streams it"
    )]
    NotStreamed {
        /// The plan.
        plan: String,
        /// Number of the block, counted from zero.
        block: usize,
    },
    /// A plan that streams blocks, and a chain whose blocks have their parameters in memory.
    #[error("the plan is '{plan}', and the chain has no store: streamed blocks need `Chain::streamed`")]
    NoStore {
        /// The plan.
        plan: String,
    },
    /// A segment length of zero.
    #[error("segments of 0 blocks, expected at least 1")]
    EmptySegment,
    /// Segments that leave a gap, overlap, or have no blocks.
    #[error(
        "segment {index} of the plan is {from}..{to}, expected it to begin at {begins} and hold at least one block"
    )]
    InvalidPlan {
        /// Number of the segment, counted from zero.
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
    /// A text that names no plan.
    #[error(
        "the plan is '{text}', expected none, every:K, offload, offload:K, stream, stream:K, or a list such as '0..3 recompute, 3..8 plain'"
    )]
    UnknownPlan {
        /// The text.
        text: String,
    },
    /// No plan stays within the budget.
    #[error("no plan stays within {budget} bytes, the least possible peak is {least} bytes")]
    Infeasible {
        /// The budget in bytes.
        budget: u64,
        /// The smallest budget that a plan fits into, in bytes.
        least: u64,
    },
    /// A cost that no chain can have.
    #[error("the {field} is {value}, expected {expected}")]
    InvalidCost {
        /// The field of [`ChainCost`](crate::ChainCost).
        field: &'static str,
        /// Its value.
        value: f64,
        /// The values that are accepted.
        expected: &'static str,
    },
}
