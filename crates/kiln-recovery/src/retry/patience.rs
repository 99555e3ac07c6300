//! How long a batch may wait for memory, and the lengths of its pauses.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The first pause. Each pause is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(30);

/// How long one batch may wait in all for memory that another process holds. Default: 5 minutes.
///
/// While no batch of a shape has ever fitted, the model is probably too large, rather than the memory taken by another process. The wait is
/// then shorter: a tenth of the patience, 30 seconds by default.
///
/// With a patience of zero no failure counts as passing: a smaller size is recorded as the new capacity at once, and a batch
/// that no remedy helps is given up at once.
///
/// ```
/// use std::time::Duration;
/// use kiln_recovery::Patience;
///
/// let patience = Patience::new(Duration::from_secs(60));
/// assert_eq!(patience.before_first_success(), Duration::from_secs(6));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patience {
    total: Duration,
    before_first_success: Duration,
}

impl Patience {
    /// A patience of at most `total` for one batch. Time spent in attempts does not count.
    pub fn new(total: Duration) -> Self {
        Self { total, before_first_success: total / 10 }
    }

    /// Sets the longest wait while no batch of the shape has ever fitted. Default: a tenth of the total.
    #[must_use]
    pub fn with_before_first_success(self, before_first_success: Duration) -> Self {
        Self { before_first_success, ..self }
    }

    /// The longest wait for one batch.
    pub fn total(self) -> Duration {
        self.total
    }

    /// The longest wait for one batch while no batch of its shape has ever fitted.
    pub fn before_first_success(self) -> Duration {
        self.before_first_success
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(Duration::from_secs(300))
    }
}

/// The pauses of one batch, or of other work that waits for memory with [`Recovery::pause`](crate::Recovery::pause).
#[derive(Debug, Clone)]
pub struct Pauses {
    waited: Duration,
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self::new()
    }
}

impl Pauses {
    /// No pause so far. The first takes 100 ms, each one after it twice as long as the one before, at most 30 s.
    pub fn new() -> Self {
        Self { waited: Duration::ZERO, next: FIRST }
    }

    /// After other pauses of the same batch, which took `waited`.
    pub fn after(waited: Duration) -> Self {
        Self { waited, ..Self::new() }
    }

    /// The sum of all pauses so far.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// The next pause, or `None` when `limit` is used up. The sum of all pauses never exceeds `limit`.
    pub(crate) fn next(&mut self, limit: Duration) -> Option<Duration> {
        let pause = self.take(self.next, limit)?;
        self.next = (2 * self.next).min(LONGEST);
        Some(pause)
    }

    /// A pause of `wanted`, or of the rest of `limit`.
    pub(super) fn take(&mut self, wanted: Duration, limit: Duration) -> Option<Duration> {
        let pause = wanted.min(limit.saturating_sub(self.waited));
        self.waited += pause;
        (!pause.is_zero()).then_some(pause)
    }
}
