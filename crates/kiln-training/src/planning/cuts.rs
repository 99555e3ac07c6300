//! Whether a batch has the same bits however it is cut into micro-batches.

use kiln_memory::Mixes;

/// What other cuts of a batch into micro-batches do to the bits of its gradients.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cuts {
    /// They change rounding: gradients are added up by micro-batches.
    Round,
    /// Nothing: rows are added in their order.
    KeepBits,
    /// They change the bits, since not all sums over samples are in the order of the samples.
    Mix(Mixes),
}
