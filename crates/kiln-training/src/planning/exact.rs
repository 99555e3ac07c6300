//! Whether the memory of a run may change its bits.

use serde::{Deserialize, Serialize};

/// When a budget, and memory that runs out, change nothing but time: where values are and when they are computed.
///
/// They can always recompute, offload and stream blocks. On the CPU device they can also cut batches without changing a bit, if the recorded step
/// shows that gradients are added up row by row and each sample is computed by itself
/// ([`Planner::keeps_bits`](crate::Planner::keeps_bits)): its layers are those of kiln-layers, without batch norm and burn's own dropout, its
/// loss is a mean over the weight of a batch, it has no attachments but adapters, and it has not both stages and replicas.
/// [`micro_batch`](crate::MemoryConfig::micro_batch) is then the most samples at once. A step that is not
/// [recorded](crate::MemoryConfig::prediction) adds gradients in any order.
///
/// Settings files may also say `true` for [`Always`](Self::Always) and `false` for [`Never`](Self::Never).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", from = "Setting")]
pub enum Exact {
    /// Where batches can be cut so, on one replica. Batches of other models are cut all the same: sums of gradients are rounded in another
    /// order, and batch norm and burn's dropout see other batches. So are those of a model whose blocks share a parameter, if it may be in a
    /// [store](crate::MemoryConfig::store).
    #[default]
    WherePossible,
    /// Always, also on replicas. Where batches cannot be cut so, micro-batches have [`micro_batch`](crate::MemoryConfig::micro_batch) samples, or
    /// batches stay whole: those of [`batch_size`](crate::RunConfig::batch_size) samples, or of as many as the batch that
    /// [`build`](crate::TrainerBuilder::build) gets. Precisions and optimizers that may replace the run's own are refused beside it.
    Always,
    /// Never: gradients of weights are sums of the products of each micro-batch, in an order that depends on the cut.
    Never,
}

/// What a settings file says.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected where-possible, always or never")]
enum Setting {
    When(When),
    Is(bool),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum When {
    WherePossible,
    Always,
    Never,
}

impl From<Setting> for Exact {
    fn from(setting: Setting) -> Self {
        match setting {
            Setting::When(When::WherePossible) => Self::WherePossible,
            Setting::When(When::Always) | Setting::Is(true) => Self::Always,
            Setting::When(When::Never) | Setting::Is(false) => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_word_or_what_earlier_files_say() {
        for (text, expected) in [
            ("\"where-possible\"", Exact::WherePossible),
            ("\"always\"", Exact::Always),
            ("true", Exact::Always),
            ("false", Exact::Never),
        ] {
            assert_eq!(serde_json::from_str::<Exact>(text).unwrap(), expected, "{text}");
        }
        for exact in [Exact::WherePossible, Exact::Always, Exact::Never] {
            let text = serde_json::to_string(&exact).unwrap();
            assert_eq!(serde_json::from_str::<Exact>(&text).unwrap(), exact);
        }
        assert!(serde_json::from_str::<Exact>("\"sometimes\"").is_err());
    }
}
