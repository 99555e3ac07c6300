use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::profile::BackendProfile;
use crate::trace::StepTrace;
use crate::{Breakdown, Buffer, Category, Error, Phase, Prediction};

mod remedies;
mod text;
mod timeline;

use timeline::Timeline;

/// Holders that an explanation lists.
const HOLDERS: usize = 12;

/// Why a step does not fit into a limit, and what would make it fit. Its `Display` is a table for the terminal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Samples in the step.
    pub batch: usize,
    /// The most bytes at once.
    pub peak_bytes: u64,
    /// Bytes that there are.
    pub limit_bytes: u64,
    /// Bytes by which the peak is over the limit: 0 when the step fits.
    pub over_bytes: u64,
    /// The operation at which the peak is.
    pub operation: String,
    /// The phase that it is in.
    pub phase: Phase,
    /// What the peak is made of; adds up to `peak_bytes`.
    pub breakdown: Breakdown,
    /// Who holds most of the peak, largest first: buffers of one module and category are one holder. At most 12.
    pub holders: Vec<Holder>,
    /// What would make the peak lower: what fits first, then by bytes saved, most first.
    pub remedies: Vec<Remedy>,
    /// The buffers that would have to go for the step to fit: each is the largest of those alive at the peak that is left. All that
    /// can go, when even that is too little.
    pub must_go: Vec<Holder>,
    /// Whether the step fits without them (`must_go`).
    pub fits_without: bool,
}

/// Buffers of one module that are alive at the same time, or one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// Path of the parameter or module, where known.
    pub path: Option<String>,
    /// The operation that made the largest of the buffers.
    pub operation: String,
    /// What they are for.
    pub category: Category,
    /// How many they are.
    pub buffers: usize,
    /// Shape of the largest.
    pub shape: Vec<usize>,
    /// Element type of the largest, as burn names it: `F32`.
    pub dtype: String,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// A change to a step, and what its peak would be then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Remedy {
    /// What to change.
    pub name: String,
    /// The most bytes at once, after it.
    pub peak_bytes: u64,
    /// Bytes by which that is lower than before.
    pub saved_bytes: u64,
    /// Whether the step then fits.
    pub fits: bool,
    /// Whether the peak is what [`StepTrace::predict`] says of the changed step; if not, it is an estimate.
    pub exact: bool,
    /// What to know of it.
    pub note: Option<String>,
}

impl StepTrace {
    /// Says what a step holds at its peak, and what each remedy would save, given `limit_bytes`.
    ///
    /// A remedy's peak is the highest of the whole step after the change, not the old one less what is saved there: often
    /// another operation is the highest then. Remedies that save nothing are left out, as is a micro-batch when the step fits;
    /// checkpointing is looked at for a chain with [`cuts`](crate::Recorder::cut). Each remedy is taken alone; for two
    /// together, record the step with one of them.
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
            holders: holders(&prediction),
            remedies: self.remedies(batch, limit_bytes, &prediction, profile)?,
            must_go,
            fits_without,
        })
    }
}

impl Holder {
    fn of(buffer: &Buffer) -> Self {
        let Buffer { bytes, shape, dtype, category, path, operation, .. } = buffer.clone();
        Self { path, operation, category, buffers: 1, shape, dtype, bytes }
    }
}

/// The largest holders at the peak.
fn holders(prediction: &Prediction) -> Vec<Holder> {
    let mut groups: BTreeMap<_, Holder> = BTreeMap::new();
    // Largest first, so that a group has the shape of its largest. What has no path is not of one module.
    for (index, buffer) in prediction.alive_at(prediction.peak_at).into_iter().enumerate() {
        let alone = if buffer.path.is_none() { index } else { 0 };
        let group = groups.entry((&buffer.path, buffer.category, alone));
        group
            .and_modify(|holder| {
                holder.buffers += 1;
                holder.bytes += buffer.bytes;
            })
            .or_insert_with(|| Holder::of(buffer));
    }
    let mut holders: Vec<Holder> = groups.into_values().collect();
    holders.sort_by_key(|holder| Reverse(holder.bytes));
    holders.truncate(HOLDERS);
    holders
}

/// The largest buffers, one after the other, without which the step fits; and whether it does.
fn must_go(prediction: &Prediction, limit_bytes: u64) -> (Vec<Holder>, bool) {
    let mut timeline = Timeline::of(prediction, |buffer| buffer.bytes);
    let mut gone = vec![false; prediction.buffers.len()];
    let mut holders = vec![];
    while timeline.peak_bytes() > limit_bytes {
        let at = timeline.peak_at();
        let alive = prediction.buffers.iter().enumerate().filter(|(index, buffer)| {
            // Workspace is no tensor.
            !gone[*index] && buffer.category != Category::Workspace && (buffer.born..=buffer.dies).contains(&at)
        });
        let Some((index, buffer)) = alive.max_by_key(|(_, buffer)| buffer.bytes) else { return (holders, false) };
        gone[index] = true;
        timeline.remove(buffer.born..=buffer.dies, buffer.bytes);
        holders.push(Holder::of(buffer));
    }
    (holders, true)
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
            (gone.iter().map(|holder| holder.bytes).collect::<Vec<_>>(), fits)
        };
        assert_eq!(gone(95), (vec![], true));
        assert_eq!(gone(94), (vec![50], true));
        // Without the 50, the last operation is the highest.
        assert_eq!(gone(60), (vec![50, 40], true));
        assert_eq!(gone(45), (vec![50, 40, 35], true));
        assert_eq!(gone(5), (vec![50, 40, 35, 30, 10], true));
        // The workspace cannot go.
        assert_eq!(gone(4), (vec![50, 40, 35, 30, 10], false));
    }

    #[test]
    fn holders_are_modules_by_category() {
        let holders = holders(&two_hills());
        let rows: Vec<_> = holders.iter().map(|h| (h.path.as_deref(), h.buffers, h.shape.clone(), h.bytes)).collect();
        assert_eq!(rows, [(Some("a"), 2, vec![50], 80), (Some("a.weight"), 1, vec![10], 10), (None, 1, vec![5], 5),]);
        // What has no path is not one module.
        let nameless = prediction(&[(3, "transient", None, 0, 0), (4, "transient", None, 0, 0)]);
        assert_eq!(super::holders(&nameless).len(), 2);
    }

    #[test]
    fn a_timeline_is_counted_again_after_a_change() {
        let mut timeline = Timeline::of(&two_hills(), |buffer| if buffer.bytes == 50 { 25 } else { buffer.bytes });
        assert_eq!((timeline.peak_bytes(), timeline.peak_at()), (90, 3));
        timeline.add(0..=1, 21);
        assert_eq!((timeline.peak_bytes(), timeline.peak_at()), (91, 1));
    }
}
