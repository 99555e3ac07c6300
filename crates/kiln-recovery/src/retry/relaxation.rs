//! The way back from stronger checkpoint plans and offload.

use serde::{Deserialize, Serialize};

use super::setting::SavingLevel;

/// Takes back a stronger plan or offload once memory is no longer short. A pure state machine.
///
/// After whole batches have fitted in one piece for one success interval, the next weaker level is tried for one batch. It
/// stays if the batch fits. If it fails, the stronger level returns at once, and the next try comes after two intervals, then
/// four, and so on while the weaker level keeps failing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Relaxation {
    /// Whole batches in a row that fitted in one piece.
    pub streak: u32,
    /// How many times in a row a weaker level has failed.
    pub failed: u32,
    /// While a weaker level is on trial: the stronger level, which is known to fit.
    pub proven: Option<SavingLevel>,
}

impl Relaxation {
    /// A batch fitted at level `present`. `whole`: it had the full size, in one piece. Returns the level of the next batch;
    /// `least` is the level that the run began with.
    pub(crate) fn fitted(
        &mut self,
        present: SavingLevel,
        whole: bool,
        least: SavingLevel,
        success_interval: u32,
        max_backoff: u32,
    ) -> SavingLevel {
        if !whole {
            return present;
        }
        if self.proven.take().is_some() {
            *self = Self::default();
        }
        self.streak = self.streak.saturating_add(1);
        let interval = u64::from(success_interval) << self.failed.min(max_backoff).min(32);
        let weaker = match present {
            SavingLevel { offload: true, .. } if !least.offload => SavingLevel { offload: false, ..present },
            SavingLevel { plan, .. } if plan > least.plan => SavingLevel { plan: plan - 1, ..present },
            _ => return present,
        };
        if u64::from(self.streak) < interval {
            return present;
        }
        (self.streak, self.proven) = (0, Some(present));
        weaker
    }

    /// Memory ran out. Returns the stronger level to go back to, if a weaker level was on trial.
    pub(crate) fn failed(&mut self) -> Option<SavingLevel> {
        self.streak = 0;
        let proven = self.proven.take()?;
        self.failed = self.failed.saturating_add(1);
        Some(proven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: SavingLevel = SavingLevel { plan: 0, offload: false };

    /// Batches until the level is `wanted`, when every batch fits.
    fn batches(relaxation: &mut Relaxation, mut present: SavingLevel, wanted: SavingLevel, interval: u32) -> usize {
        (1..)
            .find(|_| {
                present = relaxation.fitted(present, true, NONE, interval, 5);
                present == wanted
            })
            .unwrap()
    }

    #[test]
    fn offload_goes_first_and_then_plan_after_plan_down_to_the_first() {
        let mut relaxation = Relaxation::default();
        let all = SavingLevel { plan: 2, offload: true };
        assert_eq!(batches(&mut relaxation, all, SavingLevel { plan: 2, offload: false }, 3), 3);
        assert_eq!(
            batches(
                &mut relaxation,
                SavingLevel { plan: 2, offload: false },
                SavingLevel { plan: 1, offload: false },
                3
            ),
            3
        );
        assert_eq!(batches(&mut relaxation, SavingLevel { plan: 1, offload: false }, NONE, 3), 3);
        assert_eq!(relaxation.fitted(NONE, true, NONE, 3, 5), NONE);
        assert_eq!(relaxation.proven, None);
    }

    #[test]
    fn a_failing_level_is_left_at_once_and_tried_half_as_often_each_time() {
        let (mut relaxation, strong) = (Relaxation::default(), SavingLevel { plan: 1, offload: false });
        for rest in [4, 8, 16] {
            assert_eq!(batches(&mut relaxation, strong, NONE, 4), rest);
            assert_eq!(relaxation.failed(), Some(strong));
        }
        assert_eq!(relaxation.failed(), None, "nothing was on trial");
        assert_eq!(batches(&mut relaxation, strong, NONE, 4), 32);
        assert_eq!(relaxation.fitted(NONE, true, NONE, 4, 5), NONE);
        assert_eq!(relaxation.failed, 0, "it fitted");
    }

    #[test]
    fn short_batches_and_parts_do_not_count() {
        let (mut relaxation, strong) = (Relaxation::default(), SavingLevel { plan: 1, offload: false });
        for _ in 0..100 {
            assert_eq!(relaxation.fitted(strong, false, NONE, 1, 5), strong);
        }
        assert_eq!(relaxation.fitted(strong, true, NONE, 1, 5), NONE);
        assert_eq!(relaxation.fitted(NONE, false, NONE, 1, 5), NONE);
        assert_eq!(relaxation.failed(), Some(strong), "it was still on trial");
    }

    proptest! {
        /// Never weaker than the start, at most one step at a time, and no failed level again within a success interval.
        #[test]
        fn it_stays_in_bounds(fits in proptest::collection::vec((any::<bool>(), any::<bool>()), 0..400), plan in 0usize..4) {
            let (mut relaxation, least) = (Relaxation::default(), SavingLevel { plan: plan.min(1), offload: false });
            let (mut present, mut since) = (SavingLevel { plan: plan.max(least.plan), offload: true }, u32::MAX);
            for (fit, whole) in fits {
                let before = present;
                if fit {
                    present = relaxation.fitted(present, whole, least, 5, 2);
                    let steps = usize::from(before.offload != present.offload) + before.plan - present.plan;
                    prop_assert!(steps <= 1 && present.plan >= least.plan);
                    prop_assert!(steps == 0 || since >= 5, "tried again after {since}");
                    since = since.saturating_add(u32::from(whole));
                } else if let Some(proven) = relaxation.failed() {
                    present = proven;
                    since = 1; // the next batch is the first of the interval
                }
            }
        }
    }
}
