use serde::{Deserialize, Serialize};

/// A checkpoint plan and whether there is offload: what costs time and saves memory beside smaller micro-batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strength {
    /// The checkpoint plan, 0 for the caller's first.
    pub plan: usize,
    /// Whether what can live on the host does.
    pub offload: bool,
}

/// When a stronger plan or offload is taken back: memory that was short for a while is there again. A pure state machine.
///
/// Once whole batches fit in one piece a calm long, the next weaker strength is tried for one batch. One that fits stays; one
/// that fails is left at once, and rests for one calm, then two, four, and so on while it keeps failing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ease {
    /// Whole batches in a row that fitted in one piece.
    pub streak: u32,
    /// How often in a row a weaker strength has failed.
    pub failed: u32,
    /// While a weaker strength is on trial: the one that is known to fit.
    pub proven: Option<Strength>,
}

impl Ease {
    /// A batch fitted under `present`; `whole` when it was as large as batches are, in one piece. What the next is to be
    /// tried with; `least` is the strength that the run began with.
    pub(crate) fn fitted(
        &mut self,
        present: Strength,
        whole: bool,
        least: Strength,
        calm: u32,
        max_backoff: u32,
    ) -> Strength {
        if !whole {
            return present;
        }
        if self.proven.take().is_some() {
            *self = Self::default();
        }
        self.streak = self.streak.saturating_add(1);
        let rest = u64::from(calm) << self.failed.min(max_backoff).min(32);
        let weaker = match present {
            Strength { offload: true, .. } if !least.offload => Strength { offload: false, ..present },
            Strength { plan, .. } if plan > least.plan => Strength { plan: plan - 1, ..present },
            _ => return present,
        };
        if u64::from(self.streak) < rest {
            return present;
        }
        (self.streak, self.proven) = (0, Some(present));
        weaker
    }

    /// Memory ran out. The strength to go back to, when a weaker one was on trial.
    pub(crate) fn failed(&mut self) -> Option<Strength> {
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

    const NONE: Strength = Strength { plan: 0, offload: false };

    /// Batches until the strength is `wanted`, when every one fits.
    fn batches(ease: &mut Ease, mut present: Strength, wanted: Strength, calm: u32) -> usize {
        (1..)
            .find(|_| {
                present = ease.fitted(present, true, NONE, calm, 5);
                present == wanted
            })
            .unwrap()
    }

    #[test]
    fn offload_goes_first_and_then_plan_after_plan_down_to_the_first() {
        let mut ease = Ease::default();
        let all = Strength { plan: 2, offload: true };
        assert_eq!(batches(&mut ease, all, Strength { plan: 2, offload: false }, 3), 3);
        assert_eq!(
            batches(&mut ease, Strength { plan: 2, offload: false }, Strength { plan: 1, offload: false }, 3),
            3
        );
        assert_eq!(batches(&mut ease, Strength { plan: 1, offload: false }, NONE, 3), 3);
        assert_eq!(ease.fitted(NONE, true, NONE, 3, 5), NONE);
        assert_eq!(ease.proven, None);
    }

    #[test]
    fn one_that_fails_is_left_at_once_and_rests_twice_as_long_each_time() {
        let (mut ease, strong) = (Ease::default(), Strength { plan: 1, offload: false });
        for rest in [4, 8, 16] {
            assert_eq!(batches(&mut ease, strong, NONE, 4), rest);
            assert_eq!(ease.failed(), Some(strong));
        }
        assert_eq!(ease.failed(), None, "nothing was on trial");
        assert_eq!(batches(&mut ease, strong, NONE, 4), 32);
        assert_eq!(ease.fitted(NONE, true, NONE, 4, 5), NONE);
        assert_eq!(ease.failed, 0, "it fitted");
    }

    #[test]
    fn short_batches_and_parts_prove_nothing() {
        let (mut ease, strong) = (Ease::default(), Strength { plan: 1, offload: false });
        for _ in 0..100 {
            assert_eq!(ease.fitted(strong, false, NONE, 1, 5), strong);
        }
        assert_eq!(ease.fitted(strong, true, NONE, 1, 5), NONE);
        assert_eq!(ease.fitted(NONE, false, NONE, 1, 5), NONE);
        assert_eq!(ease.failed(), Some(strong), "it was still on trial");
    }

    proptest! {
        /// Whatever happens: never weaker than the start, at most one step at a time, and what failed is not tried again within a calm.
        #[test]
        fn it_stays_in_bounds(fits in proptest::collection::vec((any::<bool>(), any::<bool>()), 0..400), plan in 0usize..4) {
            let (mut ease, least) = (Ease::default(), Strength { plan: plan.min(1), offload: false });
            let (mut present, mut since) = (Strength { plan: plan.max(least.plan), offload: true }, u32::MAX);
            for (fit, whole) in fits {
                let before = present;
                if fit {
                    present = ease.fitted(present, whole, least, 5, 2);
                    let steps = usize::from(before.offload != present.offload) + before.plan - present.plan;
                    prop_assert!(steps <= 1 && present.plan >= least.plan);
                    prop_assert!(steps == 0 || since >= 5, "tried again after {since}");
                    since = since.saturating_add(u32::from(whole));
                } else if let Some(proven) = ease.failed() {
                    present = proven;
                    since = 1; // the next batch is the first of the calm
                }
            }
        }
    }
}
