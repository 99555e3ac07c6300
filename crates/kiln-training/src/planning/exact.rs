//! Whether the memory of a run may change its bits.

use serde::{Deserialize, Serialize};

/// When a budget, and memory that runs out, change nothing but time: where values are and when they are computed.
///
/// They can always recompute, offload and stream blocks. On the CPU device they can also cut batches without changing a bit, if the recorded step
/// shows that gradients are added up row by row and each sample is computed by itself
/// ([`Planner::keeps_bits`](crate::Planner::keeps_bits)): its layers are those of kiln-layers, without batch norm and burn's own dropout, its
/// loss is a mean over the weight of a batch, it has no attachments but adapters, and it has not both stages and replicas.
/// [`micro_batch`](crate::MemoryConfig::micro_batch) is then the most samples at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exact {
    /// Where batches can be cut so. Other models are cut all the same, which rounds sums of gradients in another order, and shows
    /// batch norm and burn's dropout other batches. On replicas: not.
    #[default]
    WherePossible,
    /// Always, also on replicas. Where batches cannot be cut so, micro-batches have [`micro_batch`](crate::MemoryConfig::micro_batch) samples, or
    /// batches stay whole: those of [`batch_size`](crate::RunConfig::batch_size) samples, or of as many as the batch that
    /// [`build`](crate::TrainerBuilder::build) gets. Precisions and optimizers that may replace the run's own are refused beside it.
    Always,
    /// Never: gradients of weights are summed by the fastest products, in an order that depends on the cut.
    Never,
}
