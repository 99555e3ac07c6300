//! Explains the peak of a step: the groups of buffers in it, and the buffers without which the step would fit.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::category::{Category, Phase};
use crate::error::Error;
use crate::predict::{BackendProfile, Prediction};
use crate::trace::StepTrace;

use super::explanation::{BufferGroup, Explanation};
use super::live_curve::LiveCurve;

/// The largest number of groups that an explanation lists.
const GROUPS: usize = 12;

impl StepTrace {
    /// Lists the buffers of a step at its peak, and the bytes that each of several changes would save, given `limit_bytes`.
    ///
    /// The peak after a change is the peak of the whole changed step: often another operation has the highest peak then. Changes that
    /// save nothing are left out, and a micro-batch is not suggested if the step fits. Recomputing is considered for a chain with
    /// [`cuts`](crate::Recorder::cut). Each change is applied alone. To combine two, record the step with one of them.
    ///
    /// # Errors
    /// [`Error::BatchSize`] for a batch of 0, and for one whose bytes cannot be counted.
    pub fn explain(&self, batch: usize, limit_bytes: u64, profile: &BackendProfile) -> Result<Explanation, Error> {
        let prediction = self.predict(batch, profile)?;
        let peak_bytes = prediction.peak_bytes;
        let (must_go, fits_without) = must_go(&prediction, limit_bytes);
        let at = prediction.peak_at;
        let phase = prediction.phases.iter().find(|phase| (phase.first..phase.end).contains(&at));
        Ok(Explanation {
            batch,
            peak_bytes,
            limit_bytes,
            over_bytes: peak_bytes.saturating_sub(limit_bytes),
            operation: prediction.operations.get(at).map_or_else(String::new, |operation| operation.name.clone()),
            phase: phase.map_or(Phase::Forward, |phase| phase.phase),
            breakdown: prediction.breakdown.clone(),
            groups: groups(&prediction),
            suggestions: self.suggestions(batch, limit_bytes, &prediction, profile)?,
            must_go,
            fits_without,
        })
    }
}

/// The largest groups of buffers at the peak.
fn groups(prediction: &Prediction) -> Vec<BufferGroup> {
    let mut by_module: BTreeMap<_, BufferGroup> = BTreeMap::new();
    // The largest comes first, so that a group has the shape of its largest buffer. Buffers without a path may be of different modules.
    for (index, buffer) in prediction.alive_at(prediction.peak_at).into_iter().enumerate() {
        let alone = if buffer.path.is_none() { index } else { 0 };
        let group = by_module.entry((&buffer.path, buffer.category, alone));
        group
            .and_modify(|group| {
                group.buffers += 1;
                group.bytes += buffer.bytes;
            })
            .or_insert_with(|| BufferGroup::of(buffer));
    }
    let mut groups: Vec<BufferGroup> = by_module.into_values().collect();
    groups.sort_by_key(|group| Reverse(group.bytes));
    groups.truncate(GROUPS);
    groups
}

/// The largest buffers, one after the other, without which the step fits; and whether the step fits without them.
fn must_go(prediction: &Prediction, limit_bytes: u64) -> (Vec<BufferGroup>, bool) {
    let mut curve = LiveCurve::of(prediction, |buffer| buffer.bytes);
    let mut gone = vec![false; prediction.buffers.len()];
    let mut groups = vec![];
    while curve.peak_bytes() > limit_bytes {
        let at = curve.peak_at();
        let alive = prediction.buffers.iter().enumerate().filter(|(index, buffer)| {
            // Workspace is not a tensor.
            !gone[*index] && buffer.category != Category::Workspace && (buffer.born..=buffer.dies).contains(&at)
        });
        let Some((index, buffer)) = alive.max_by_key(|(_, buffer)| buffer.bytes) else { return (groups, false) };
        gone[index] = true;
        curve.remove(buffer.born..=buffer.dies, buffer.bytes);
        groups.push(BufferGroup::of(buffer));
    }
    (groups, true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]
mod tests {
    use serde_json::json;

    use super::*;

    /// Buffers of (bytes, category, path, first operation, last operation) over four operations.
    fn prediction(buffers: &[(u64, &str, Option<&str>, usize, usize)]) -> Prediction {
        let live: Vec<u64> =
            (0..4).map(|at| buffers.iter().filter(|b| (b.3..=b.4).contains(&at)).map(|b| b.0).sum()).collect();
        let peak = *live.iter().max().unwrap();
        let at = live.iter().position(|bytes| *bytes == peak);
        let operations: Vec<_> =
            live.iter().map(|bytes| json!({"name": "Add", "live_bytes": bytes, "seconds": 0.0})).collect();
        let buffers: Vec<_> = buffers
            .iter()
            .map(|(bytes, category, path, born, dies)| {
                json!({"bytes": bytes, "shape": [bytes], "dtype": "F32", "category": category, "path": path,
                       "operation": "Add", "born": born, "dies": dies})
            })
            .collect();
        let value = json!({"peak_bytes": peak, "peak_at": at, "breakdown": {}, "phases": [], "operations": operations,
                           "buffers": buffers});
        serde_json::from_value(value).unwrap()
    }

    fn two_hills() -> Prediction {
        prediction(&[
            (10, "parameter", Some("a.weight"), 0, 3),
            (50, "activation", Some("a"), 0, 1),
            (30, "activation", Some("a"), 1, 1),
            (40, "transient", Some("a"), 3, 3),
            (35, "transient", None, 3, 3),
            (5, "workspace", None, 1, 3),
        ])
    }

    #[test]
    fn another_peak_may_be_left_when_the_first_is_gone() {
        let gone = |limit| {
            let (gone, fits) = must_go(&two_hills(), limit);
            (gone.iter().map(|group| group.bytes).collect::<Vec<_>>(), fits)
        };
        assert_eq!(gone(95), (vec![], true));
        assert_eq!(gone(94), (vec![50], true));
        // Without the buffer of 50 bytes, the last operation is the highest.
        assert_eq!(gone(60), (vec![50, 40], true));
        assert_eq!(gone(45), (vec![50, 40, 35], true));
        assert_eq!(gone(5), (vec![50, 40, 35, 30, 10], true));
        // The workspace cannot be removed.
        assert_eq!(gone(4), (vec![50, 40, 35, 30, 10], false));
    }

    #[test]
    fn groups_are_modules_by_category() {
        let groups = groups(&two_hills());
        let rows: Vec<_> = groups.iter().map(|h| (h.path.as_deref(), h.buffers, h.shape.clone(), h.bytes)).collect();
        assert_eq!(rows, [(Some("a"), 2, vec![50], 80), (Some("a.weight"), 1, vec![10], 10), (None, 1, vec![5], 5),]);
        // Buffers without a path are not grouped.
        let nameless = prediction(&[(3, "transient", None, 0, 0), (4, "transient", None, 0, 0)]);
        assert_eq!(super::groups(&nameless).len(), 2);
    }

    #[test]
    fn a_timeline_is_counted_again_after_a_change() {
        let mut curve = LiveCurve::of(&two_hills(), |buffer| if buffer.bytes == 50 { 25 } else { buffer.bytes });
        assert_eq!((curve.peak_bytes(), curve.peak_at()), (90, 3));
        curve.add(0..=1, 21);
        assert_eq!((curve.peak_bytes(), curve.peak_at()), (91, 1));
    }
}
