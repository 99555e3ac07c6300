//! What a prediction adds to tensors: the margin between a peak and a limit, and memory beside burn's tensors.

use super::profile::BackendProfile;
use crate::category::Category;
use crate::trace::{StepTrace, TraceRole};

const MARGIN_PARTS: u64 = 50;

/// The part of a predicted peak that must be free in addition to the peak itself: 2 %.
///
/// Predictions of steps under checkpoint plans were up to 0.7 % below the measured peak (see `benches/results/memory.md`). The
/// margin covers them and small models, whose bookkeeping is a visible part.
pub const PREDICTION_MARGIN: f64 = 1.0 / MARGIN_PARTS as f64;

/// Whether a predicted peak fits into a limit with [`PREDICTION_MARGIN`] to spare.
///
/// ```
/// use kiln_memory::fits_within;
///
/// assert!(fits_within(1000, 1020) && !fits_within(1000, 1019));
/// ```
pub fn fits_within(peak_bytes: u64, limit_bytes: u64) -> bool {
    peak_bytes.saturating_add(peak_bytes / MARGIN_PARTS) <= limit_bytes
}

/// The largest peak that [`fits_within`] a limit.
///
/// ```
/// use kiln_memory::{fits_within, largest_within};
///
/// let peak = largest_within(1020);
/// assert!(fits_within(peak, 1020) && !fits_within(peak + 1, 1020));
/// ```
pub fn largest_within(limit_bytes: u64) -> u64 {
    // For each MARGIN_PARTS bytes of a peak, the limit needs one byte more. A last group that lacks only that byte is one byte short.
    let group = MARGIN_PARTS + 1;
    limit_bytes - limit_bytes / group - u64::from(limit_bytes % group == MARGIN_PARTS)
}

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
    let [start, _, update, end] = trace.phases;
    let graph_bytes = profile.graph_bytes(trace);
    let of_parameters = match profile.parameter_bytes + profile.trained_bytes {
        0 => 0,
        _ => {
            let [parameters, trained] = [TraceRole::Parameter, TraceRole::Updated].map(|role| trace.with_role(role));
            profile.parameter_bytes * parameters + profile.trained_bytes * trained
        }
    };
    let host_bytes = profile.sample_bytes.saturating_mul(batch as u64);
    let whole = |bytes, category, name| Overhead { bytes, category, name, last: end - start - 1 };
    let all = [
        whole(profile.fixed_bytes, Category::Workspace, "device runtime"),
        whole(profile.loader_bytes, Category::DataLoader, "data loader"),
        whole(of_parameters, Category::Workspace, "handles of parameters"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_peak_fits_and_the_next_does_not() {
        for limit in (0..300).chain([12_345_678_901, u64::MAX / 2]) {
            let peak = largest_within(limit);
            assert!(fits_within(peak, limit) && !fits_within(peak + 1, limit), "{limit}: {peak}");
        }
    }
}
