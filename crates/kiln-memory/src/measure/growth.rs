//! Memory that grows from step to step, because something keeps tensors that it should drop.

/// Steps of a window. Only the least bytes of a window count, because a loader has more or fewer batches in flight.
const WINDOW: u64 = 16;
/// Windows that must each be above the one before, all but one of them by about the same: a list of what is kept grows at once for many.
const WINDOWS: usize = 4;
/// The fewest bytes a step: less is a list of numbers, and no tensor.
const LEAST: u64 = 256;

/// Finds steady growth in the bytes that are live at the end of each step. A healthy run has as many after each step, from the second on.
///
/// ```
/// use kiln_memory::GrowthAlarm;
///
/// let mut alarm = GrowthAlarm::default();
/// let found = (1..=200_u64).find_map(|step| alarm.note((1 << 20) + step * 4096));
/// assert_eq!(found.map(|growth| growth.bytes_per_step), Some(4096));
/// let mut alarm = GrowthAlarm::default();
/// assert!((1..=200).all(|_| alarm.note(1 << 20).is_none()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct GrowthAlarm {
    steps: u64,
    /// The least bytes in the window that is under way.
    least: Option<u64>,
    /// The least bytes of the last windows.
    windows: Vec<u64>,
    /// The bytes of the last alarm. The next one comes when as many have been added again.
    reported: Option<(u64, u64)>,
}

/// Memory that grows by about the same in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// Bytes that each step adds.
    pub bytes_per_step: u64,
    /// Steps over which it was seen.
    pub steps: u64,
}

impl GrowthAlarm {
    /// Notes the bytes that are live at the end of a step. Returns a growth when it has been seen over 64 steps, and again whenever it has
    /// doubled.
    pub fn note(&mut self, live_bytes: u64) -> Option<Growth> {
        self.steps += 1;
        self.least = Some(self.least.map_or(live_bytes, |least| least.min(live_bytes)));
        if !self.steps.is_multiple_of(WINDOW) {
            return None;
        }
        self.windows.extend(self.least.take());
        if self.windows.len() > WINDOWS + 1 {
            self.windows.remove(0);
        }
        let growth = steady(&self.windows)?;
        let (first, last) = (self.windows[0], self.windows[WINDOWS]);
        let begun = self.reported.map_or(first, |(begun, _)| begun);
        if self.reported.is_some_and(|(begun, reported)| last.saturating_sub(begun) < 2 * (reported - begun)) {
            return None;
        }
        self.reported = Some((begun, last));
        Some(growth)
    }
}

/// The growth of windows, each of which is above the one before, all but one by at most twice what another one is.
fn steady(windows: &[u64]) -> Option<Growth> {
    if windows.len() <= WINDOWS {
        return None;
    }
    let mut added: Vec<u64> = windows.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    added.sort_unstable();
    let growth = Growth { bytes_per_step: added[1] / WINDOW, steps: WINDOW * WINDOWS as u64 };
    (added[0] >= LEAST * WINDOW && added[WINDOWS - 2] <= 2 * added[0]).then_some(growth)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn alarms(bytes: impl IntoIterator<Item = u64>) -> Vec<(usize, u64)> {
        let mut alarm = GrowthAlarm::default();
        let noted = bytes.into_iter().enumerate();
        noted.filter_map(|(step, bytes)| Some((step + 1, alarm.note(bytes)?.bytes_per_step))).collect()
    }

    proptest! {
        /// The loader's batches come and go; the optimizer's state is made in the first step.
        #[test]
        fn what_comes_and_goes_is_no_growth(flight in prop::collection::vec(0_u64..4, 400), state in 0_u64..1 << 30) {
            let bytes = flight.iter().enumerate().map(|(step, flight)| (flight << 20) + if step > 0 { state } else { 0 });
            prop_assert!(alarms(bytes).is_empty());
        }

        #[test]
        fn what_every_step_adds_is_found_within_a_hundred_steps(
            added in 512_u64..1 << 24, flight in prop::collection::vec(0_u64..4, 400),
        ) {
            let bytes = flight.iter().enumerate().map(|(step, flight)| (flight << 12) + (1 << 24) + step as u64 * added);
            let found = alarms(bytes);
            prop_assert!(added < 1 << 13 || found.first().is_some_and(|(step, _)| *step <= 100), "{found:?}");
            for (_, each) in &found {
                prop_assert!(*each + (1 << 13) > added && *each < added + (1 << 13), "{each} of {added}");
            }
        }
    }

    #[test]
    fn an_alarm_is_repeated_when_the_growth_has_doubled() {
        let found = alarms((0..1000).map(|step| step * 1000));
        assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [80, 144, 272, 528]);
        assert!(found.iter().all(|(_, each)| *each == 1000), "{found:?}");
    }
}
