//! Sparsity that grows while a model is trained.

use serde::{Deserialize, Serialize};

use crate::Error;

/// Gradual pruning (Zhu and Gupta 2017): sparsity grows fast at first and slowly at the end, as
/// `final + (initial - final) * (1 - progress)^3`.
///
/// ```
/// use kiln_compression::Gradual;
///
/// let schedule = Gradual { from_step: 100, to_step: 1100, every: 100, initial: 0.0, final_sparsity: 0.5 };
/// schedule.check()?;
/// assert_eq!([0, 100, 600, 1100, 5000].map(|step| schedule.sparsity_at(step)), [0.0, 0.0, 0.4375, 0.5, 0.5]);
/// assert!(schedule.is_update(600) && !schedule.is_update(601) && !schedule.is_update(1200));
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gradual {
    /// The step of the first update.
    pub from_step: usize,
    /// The step of the last update, which is always made.
    pub to_step: usize,
    /// Steps between updates; 1 or more.
    pub every: usize,
    /// Sparsity at the first update, from 0 to `final_sparsity`; 0 by default.
    #[serde(default)]
    pub initial: f64,
    /// Sparsity from the last update on, from 0 to below 1.
    pub final_sparsity: f64,
}

impl Gradual {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for steps that do not follow each other, and sparsities out of range or in the wrong order.
    pub fn check(&self) -> Result<(), Error> {
        if self.to_step <= self.from_step {
            return Err(Error::invalid("to_step", self.to_step, "a step after from_step"));
        }
        if self.every == 0 {
            return Err(Error::invalid("every", 0, "1 or more"));
        }
        if !(0.0..1.0).contains(&self.final_sparsity) {
            return Err(Error::invalid("final_sparsity", self.final_sparsity, "0 to below 1"));
        }
        if !(0.0..=self.final_sparsity).contains(&self.initial) {
            return Err(Error::invalid("initial", self.initial, "0 to final_sparsity"));
        }
        Ok(())
    }

    /// The sparsity that the model has after `step`, counted from 0: `initial` before the first update.
    pub fn sparsity_at(&self, step: usize) -> f64 {
        let length = self.to_step.saturating_sub(self.from_step).max(1);
        let done = step.saturating_sub(self.from_step).min(length);
        // Between updates nothing changes.
        let done = if done == length { length } else { done - done % self.every.max(1) };
        let left = 1.0 - done as f64 / length as f64;
        self.final_sparsity + (self.initial - self.final_sparsity) * left.powi(3)
    }

    /// Whether the masks are chosen anew after `step`.
    pub fn is_update(&self, step: usize) -> bool {
        let inside = (self.from_step..=self.to_step).contains(&step);
        inside && (step == self.to_step || (step - self.from_step).is_multiple_of(self.every.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn settings_out_of_range_are_errors() {
        let good = Gradual { from_step: 0, to_step: 10, every: 2, initial: 0.1, final_sparsity: 0.9 };
        assert_eq!(good.check(), Ok(()));
        for wrong in [
            Gradual { to_step: 0, ..good },
            Gradual { every: 0, ..good },
            Gradual { final_sparsity: 1.0, ..good },
            Gradual { final_sparsity: f64::NAN, ..good },
            Gradual { initial: 0.95, ..good },
        ] {
            assert!(matches!(wrong.check(), Err(Error::InvalidSetting { .. })), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn sparsity_grows_and_changes_at_updates_only(from in 0usize..50, length in 1usize..90, every in 1usize..20) {
            let schedule = Gradual { from_step: from, to_step: from + length, every, initial: 0.1, final_sparsity: 0.9 };
            for step in 1..from + length + 10 {
                let (before, now) = (schedule.sparsity_at(step - 1), schedule.sparsity_at(step));
                prop_assert!(now >= before);
                prop_assert!(now == before || schedule.is_update(step));
            }
            prop_assert_eq!(schedule.sparsity_at(from), schedule.sparsity_at(0));
            prop_assert_eq!(schedule.sparsity_at(from + length), 0.9);
            prop_assert!(schedule.is_update(from) && schedule.is_update(from + length));
        }
    }
}
