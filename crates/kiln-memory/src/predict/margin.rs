//! The margin that is kept between a predicted peak and a limit.

const MARGIN_PARTS: u64 = 50;

/// The part of a predicted peak that must be free besides the peak itself: 2 %.
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
