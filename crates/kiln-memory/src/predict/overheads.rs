//! Bytes that exist in addition to the tensors of a step: the device's own, the data loader's, and burn's graph.

use crate::category::Category;
use crate::trace::StepTrace;

use super::profile::BackendProfile;

/// Bytes that are alive from the first operation of the step to `last`.
pub(super) struct Overhead {
    pub(super) bytes: u64,
    pub(super) category: Category,
    pub(super) name: &'static str,
    /// Index of the last operation, counted from the beginning of the step.
    pub(super) last: usize,
}

/// The overheads that are not zero.
pub(super) fn overheads(trace: &StepTrace, batch: usize, profile: &BackendProfile) -> impl Iterator<Item = Overhead> {
    let [start, backward, update, end] = trace.phases;
    let graph_bytes = profile.operation_bytes * (backward - start) as u64;
    let host_bytes = profile.sample_bytes.saturating_mul(batch as u64);
    let whole = |bytes, category, name| Overhead { bytes, category, name, last: end - start - 1 };
    let all = [
        whole(profile.fixed_bytes, Category::Workspace, "device runtime"),
        whole(profile.loader_bytes, Category::DataLoader, "data loader"),
        Overhead {
            bytes: graph_bytes,
            category: Category::Workspace,
            name: "autodiff graph",
            last: update - start - 1,
        },
        Overhead {
            bytes: host_bytes,
            category: Category::Input,
            name: "samples on the host",
            last: update - start - 1,
        },
    ];
    all.into_iter().filter(|overhead| overhead.bytes > 0)
}
