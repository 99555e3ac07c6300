//! The margin that is kept between a predicted peak and a limit.

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
