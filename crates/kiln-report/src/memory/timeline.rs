//! The step over time: the beginning of each operation, and the bytes alive in it.

use std::ops::Range;

use super::align::align;
use super::figures::{Limit, PhaseRow, limits, phases};
use super::{Category, MemoryPage, PredictedStep};

/// The number of categories.
const LAYERS: usize = Category::STACK.len();

/// The quantity on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Seconds according to the prediction.
    Estimated,
    /// Measured seconds. Predicted operations are stretched to them.
    Measured,
    /// Operations, if no time is known.
    Operations,
}

/// A phase on the axis.
#[derive(Clone, Debug)]
pub(super) struct Band {
    pub(super) phase: String,
    pub(super) start: f64,
    pub(super) end: f64,
}

/// A step, laid out.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) axis: Axis,
    /// Beginning of the axis.
    pub(super) from: f64,
    /// End of the axis, always after `from`.
    pub(super) to: f64,
    /// Beginning of each operation, and end of the last one; empty without operations.
    pub(super) starts: Vec<f64>,
    /// Bytes of each operation by category, in the order of [`Category::STACK`].
    pub(super) stack: Vec<[u64; LAYERS]>,
    /// The phases.
    pub(super) bands: Vec<Band>,
    /// Measured bytes over time.
    pub(super) curve: Vec<(f64, u64)>,
    /// Whether `curve` has samples. Otherwise it has only the peak of each phase.
    pub(super) sampled: bool,
    /// Whether operations are placed by the measured bytes, not by the estimated times.
    pub(super) aligned: bool,
    /// Limits near enough to be lines in the drawing, and those above it.
    pub(super) lines: Vec<Limit>,
    pub(super) above: Vec<Limit>,
    /// The most bytes that occur.
    pub(super) most: u64,
}

impl Timeline {
    /// Lays a report out; `None` if there is nothing to lay out.
    pub(super) fn of(report: &MemoryPage) -> Option<Self> {
        let rows = phases(report);
        let (curve, sampled) = curve(report, &rows);
        let samples = if sampled { &curve[..] } else { &[] };
        let Placed { axis, starts, mut bands, aligned } = match &report.prediction {
            Some(prediction) if !prediction.operations.is_empty() => place(prediction, &rows, samples),
            _ => Placed { axis: Axis::Measured, starts: vec![], bands: vec![], aligned: false },
        };
        if starts.is_empty() && curve.is_empty() {
            return None;
        }
        if bands.is_empty() {
            bands = measured_bands(&rows);
        }
        let stack = report.prediction.as_ref().map_or(vec![], stack);
        let ends = bands.iter().flat_map(|band| [band.start, band.end]);
        let all = ends.chain(starts.iter().copied()).chain(curve.iter().map(|point| point.0));
        let (from, to) = all.fold((f64::MAX, f64::MIN), |(from, to), x| (from.min(x), to.max(x)));
        let to = if to > from { to } else { from + 1.0 };
        let peaks = [report.prediction.as_ref().map(|p| p.peak_bytes), report.measured.as_ref().map(|m| m.peak_bytes)];
        let totals = stack.iter().map(|bytes| total(bytes)).chain(curve.iter().map(|point| point.1));
        let most = totals.chain(peaks.into_iter().flatten()).max().unwrap_or(0);
        let (lines, above) = limits(report).into_iter().partition(|limit| limit.is_near(most));
        Some(Self { axis, from, to, starts, stack, bands, curve, sampled, aligned, lines, above, most })
    }

    /// What the drawing has, each with the name of its colour and its name for readers.
    pub(super) fn legend(&self) -> Vec<(&'static str, &'static str)> {
        let has = |layer: &usize| self.stack.iter().any(|bytes| bytes[*layer] > 0);
        let categories = (0..LAYERS).filter(has).map(|layer| Category::STACK[layer].words());
        let mut legend: Vec<_> = categories.map(|[slug, name, _]| (slug, name)).collect();
        if !self.curve.is_empty() {
            legend.push(("curve", if self.sampled { "measured" } else { "measured peak of each phase" }));
        }
        legend
    }
}

/// Bytes of all categories.
pub(super) fn total(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Operations and phases on an axis.
struct Placed {
    axis: Axis,
    starts: Vec<f64>,
    bands: Vec<Band>,
    aligned: bool,
}

/// The beginnings of operations. If the measured phases match, operations are placed in their phases. Otherwise they are placed over the
/// measured step, or over the estimated time, or one after the other. In a measured phase with enough samples, each operation is placed
/// where the measured bytes match its own.
fn place(prediction: &PredictedStep, rows: &[PhaseRow], curve: &[(f64, u64)]) -> Placed {
    let known = |seconds: f64| if seconds.is_finite() { seconds.clamp(0.0, 1e9) } else { 0.0 };
    let mut weights: Vec<_> = prediction.operations.iter().map(|operation| known(operation.seconds)).collect();
    let mut axis = Axis::Estimated;
    if weights.iter().all(|seconds| *seconds == 0.0) {
        weights.fill(1.0);
        axis = Axis::Operations;
    }
    let ranges = ranges(prediction);
    if let (Some(ranges), Some(bands)) = (&ranges, matched(rows)) {
        let live: Vec<u64> = prediction.operations.iter().map(|operation| operation.live_bytes).collect();
        let (mut starts, mut aligned) = (vec![], false);
        for (range, band) in ranges.iter().zip(&bands) {
            let within = curve.partition_point(|point| point.0 < band.start);
            let end = curve.partition_point(|point| point.0 <= band.end);
            let samples = &curve[within..end.max(within)];
            let (live, weights) = (&live[range.clone()], &weights[range.clone()]);
            match align(live, weights, samples, band.start, band.end) {
                Some(found) => {
                    starts.extend(found);
                    aligned = true;
                }
                None => spread(weights, band.start, band.end, &mut starts),
            }
        }
        starts.push(bands.last().map_or(0.0, |band| band.end));
        return Placed { axis: Axis::Measured, starts, bands, aligned };
    }
    let times = measured_bands(rows).into_iter().flat_map(|band| [band.start, band.end]);
    let times = times.chain(curve.iter().map(|point| point.0));
    let (from, to) = times.fold((f64::MAX, f64::MIN), |(from, to), x| (from.min(x), to.max(x)));
    let (axis, from, to) = if to > from { (Axis::Measured, from, to) } else { (axis, 0.0, weights.iter().sum()) };
    let mut starts = vec![];
    spread(&weights, from, to, &mut starts);
    starts.push(to);
    let bands = ranges.into_iter().flatten().zip(&prediction.phases);
    let bands =
        bands.map(|(range, p)| Band { phase: p.phase.clone(), start: starts[range.start], end: starts[range.end] });
    let bands = bands.collect();
    Placed { axis, starts, bands, aligned: false }
}

/// The operations of each phase, if phases follow each other from the first operation to the last.
fn ranges(prediction: &PredictedStep) -> Option<Vec<Range<usize>>> {
    let mut next = 0;
    let mut ranges = vec![];
    for phase in &prediction.phases {
        if phase.first != next || phase.end < phase.first {
            return None;
        }
        ranges.push(phase.first..phase.end);
        next = phase.end;
    }
    (next == prediction.operations.len()).then_some(ranges)
}

/// The measured phases, if each predicted one has its counterpart and they follow each other.
fn matched(rows: &[PhaseRow]) -> Option<Vec<Band>> {
    let bands = measured_bands(rows);
    let ordered = bands.windows(2).all(|pair| pair[0].end <= pair[1].start);
    (!rows.is_empty() && bands.len() == rows.len() && rows.iter().all(|row| row.predicted.is_some()) && ordered)
        .then_some(bands)
}

fn measured_bands(rows: &[PhaseRow]) -> Vec<Band> {
    let bands =
        rows.iter().filter_map(|row| row.measured.map(|(_, start, end)| Band { phase: row.phase.clone(), start, end }));
    bands.filter(|band| band.start.is_finite() && band.end.is_finite() && band.start <= band.end).collect()
}

/// Places the beginnings of consecutive operations between two times, by their weights.
fn spread(weights: &[f64], from: f64, to: f64, starts: &mut Vec<f64>) {
    let total: f64 = weights.iter().sum();
    let mut done = 0.0;
    for (index, weight) in weights.iter().enumerate() {
        let part = if total > 0.0 { (done / total).min(1.0) } else { index as f64 / weights.len() as f64 };
        starts.push(from + (to - from) * part);
        done += weight;
    }
}

/// The measurement over time: samples if there are any, otherwise the peak of each phase as a level.
fn curve(report: &MemoryPage, rows: &[PhaseRow]) -> (Vec<(f64, u64)>, bool) {
    let samples = report.measured.iter().flat_map(|measured| measured.samples.iter());
    let mut curve: Vec<_> =
        samples.filter(|sample| sample.seconds.is_finite()).map(|sample| (sample.seconds, sample.bytes)).collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    let sampled = !curve.is_empty();
    if !sampled {
        let levels = rows.iter().filter_map(|row| row.measured);
        let levels = levels.filter(|(_, start, end)| start.is_finite() && end.is_finite() && start <= end);
        curve.extend(levels.flat_map(|(bytes, start, end)| [(start, bytes), (end, bytes)]));
    }
    (curve, sampled)
}

/// Bytes of each operation by category. Bytes alive beyond the buffers count as workspace.
fn stack(prediction: &PredictedStep) -> Vec<[u64; LAYERS]> {
    let operations = prediction.operations.len();
    // Buffers that begin minus those that have ended. Differences may be negative, hence the wrapping arithmetic.
    let mut changes = vec![[0u64; LAYERS]; operations + 1];
    for buffer in prediction.buffers.iter().filter(|buffer| buffer.born <= buffer.dies && buffer.born < operations) {
        let Some(layer) = Category::STACK.iter().position(|category| *category == buffer.category) else { continue };
        let (born, gone) = (buffer.born, buffer.dies.saturating_add(1).min(operations));
        changes[born][layer] = changes[born][layer].wrapping_add(buffer.bytes);
        changes[gone][layer] = changes[gone][layer].wrapping_sub(buffer.bytes);
    }
    let mut now = [0u64; LAYERS];
    let steps = changes.iter().zip(&prediction.operations).map(|(change, operation)| {
        for (bytes, change) in now.iter_mut().zip(change) {
            *bytes = bytes.wrapping_add(*change);
        }
        let mut stack = now;
        let held = total(&stack);
        if let Some(last) = stack.last_mut() {
            *last = last.saturating_add(operation.live_bytes.saturating_sub(held));
        }
        stack
    });
    steps.collect()
}
