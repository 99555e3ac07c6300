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
    /// Whether the step fits without [`must_go`](Self::must_go).
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
