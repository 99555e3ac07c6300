//! Changes that lower the peak of a step: micro-batches, 16-bit precision, recomputing, other optimizers.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::category::Category;
use crate::error::Error;
use crate::predict::{BackendProfile, Buffer, Kernels, Prediction, largest};
use crate::trace::{Recomputed, StepTrace, TraceRole};

use super::explanation::Suggestion;
use super::live_curve::LiveCurve;

impl StepTrace {
    pub(super) fn suggestions(
        &self,
        batch: usize,
        limit_bytes: u64,
        prediction: &Prediction,
        profile: &BackendProfile,
    ) -> Result<Vec<Suggestion>, Error> {
        let suggestion = |name: String, peak_bytes: u64| {
            Suggestion::new(name, prediction.peak_bytes, peak_bytes).with_limit(limit_bytes)
        };
        let before = seconds(prediction);
        let mut suggestions = vec![];
        if prediction.peak_bytes > limit_bytes && batch > 1 {
            let (size, peak_bytes) = self.micro_batch(batch, limit_bytes, profile)?;
            let note = "the sum of the gradients is counted, which stays over the micro-batches";
            let after = self.in_micro_batches(batch, size, profile)?;
            suggestions.push(
                suggestion(format!("micro-batches of {size}"), peak_bytes)
                    .with_relative_time(after / before)
                    .with_note(note),
            );
        }
        suggestions.extend(self.sixteen_bits(prediction).map(|peak_bytes| {
            let note = "estimate: half of each activation but batch-norm's, and a copy of the weights in 16 bits";
            suggestion("16-bit precision".into(), peak_bytes).approximated().with_note(note)
        }));
        for (name, mut plan) in self.plans() {
            let mut changed = |offloaded: bool| {
                plan.iter_mut().for_each(|segment| segment.offloaded = offloaded);
                // A chain whose backward pass cannot be divided has no such suggestion.
                let planned = self.with_plan(&plan).ok();
                planned.map(|planned| planned.predict(batch, profile)).transpose()
            };
            let (Some(kept), Some(offloaded)) = (changed(false)?, changed(true)?) else { continue };
            let of = |name: String, after: &Prediction| {
                suggestion(name, after.peak_bytes).with_relative_time(seconds(after) / before)
            };
            suggestions.push(of(name.clone(), &kept));
            if profile.kernels == Kernels::Cube && offloaded.peak_bytes < kept.peak_bytes {
                suggestions.push(of(name + ", inputs in host memory", &offloaded));
            }
        }
        for (name, rest) in self.optimizers(prediction) {
            let changed = LiveCurve::of(prediction, |buffer| match buffer.category {
                Category::OptimizerState => rest.of(buffer.bytes),
                _ => buffer.bytes,
            });
            let note = "estimate: the update is taken to be as recorded but for its state";
            suggestions.push(suggestion(name.into(), changed.peak_bytes()).approximated().with_note(note));
        }
        suggestions.retain(|suggestion| suggestion.saved_bytes > 0);
        suggestions.sort_by_key(|suggestion| (!suggestion.fits, Reverse(suggestion.saved_bytes)));
        Ok(suggestions)
    }

    /// The largest micro-batch that fits, or 1, and its peak.
    fn micro_batch(&self, batch: usize, limit_bytes: u64, profile: &BackendProfile) -> Result<(usize, u64), Error> {
        let peak = |size| Ok::<_, Error>(self.accumulating(&self.predict(size, profile)?, profile).peak_bytes());
        let size = largest(batch - 1, |size| Ok(peak(size)? <= limit_bytes))?.unwrap_or(1);
        Ok((size, peak(size)?))
    }

    /// Estimated seconds of a step on `batch` samples in micro-batches of `size`.
    fn in_micro_batches(&self, batch: usize, size: usize, profile: &BackendProfile) -> Result<f64, Error> {
        let part = self.estimate(size, profile)?;
        Ok((part.forward_seconds + part.backward_seconds) * batch as f64 / size as f64 + part.update_seconds)
    }

    /// The step as one of several micro-batches whose gradients are summed: all sums are alive, and a gradient is added as soon as it is
    /// made if its parameter is read once.
    fn accumulating(&self, prediction: &Prediction, profile: &BackendProfile) -> LiveCurve {
        let mut curve = LiveCurve::of(prediction, |buffer| buffer.bytes);
        let [start, backward, update, _] = self.phases;
        let is_gradient = |tensor: &u32| self.tensors[*tensor as usize].role == TraceRole::Gradient;
        let before = (0..start).flat_map(|index| self.graph.outputs_at(index)).any(is_gradient);
        if !before {
            let sums = self.learned().map(|bytes| profile.taken(bytes)).sum();
            let last = (update - start).saturating_sub(1);
            curve.add(0..=last, sums);
            let once = self.read_once();
            let made =
                (backward..update).flat_map(|index| self.graph.outputs_at(index).iter().map(move |out| (*out, index)));
            let gradients = made.filter(|(tensor, _)| is_gradient(tensor));
            let added_at: HashMap<_, _> =
                gradients.filter_map(|(tensor, index)| Some((self.path_of(tensor as usize)?, index - start))).collect();
            for buffer in prediction.buffers.iter().filter(|buffer| buffer.category == Category::Gradient) {
                let path = buffer.path.as_deref().filter(|path| once.contains(path));
                if let Some(added) = path.and_then(|path| added_at.get(path)).filter(|added| **added < last) {
                    curve.remove(added + 1..=buffer.dies.min(last), buffer.bytes);
                }
            }
        }
        curve
    }

    /// The peak with everything that is float between parameters and gradients in 16 bits; `None` where nothing is in 32.
    fn sixteen_bits(&self, prediction: &Prediction) -> Option<u64> {
        let update = self.phases[2] - self.phases[0];
        let is_halved = |buffer: &Buffer| {
            let kind = matches!(buffer.category, Category::Activation | Category::Transient);
            // Some f32 buffers stay as they are, since batch norm computes in f32 all the same.
            kind && buffer.dtype == "F32" && buffer.born < update && buffer.operation != "BatchNorm"
        };
        if !prediction.buffers.iter().any(is_halved) {
            return None;
        }
        let mut curve =
            LiveCurve::of(prediction, |buffer| if is_halved(buffer) { buffer.bytes / 2 } else { buffer.bytes });
        // As in the step, weights are read in 16 bits from a copy that the backward pass reads again.
        let weights = prediction
            .buffers
            .iter()
            .filter(|buffer| buffer.category == Category::Parameter && buffer.dtype == "F32" && buffer.born == 0);
        curve.add(0..=update.saturating_sub(1), weights.map(|buffer| buffer.bytes / 2).sum());
        Some(curve.peak_bytes())
    }

    /// Checkpoint plans for the chain. The last segment is plain if it would be recomputed at once.
    fn plans(&self) -> Vec<(String, Vec<Recomputed>)> {
        let blocks = self.blocks();
        if blocks == 0 {
            return vec![];
        }
        let plan = |length: usize| {
            let segment =
                |start| Recomputed { blocks: start..blocks.min(start + length), offloaded: false, streamed: false };
            let mut segments: Vec<_> = (0..blocks).step_by(length).map(segment).collect();
            if segments.len() > 1 {
                segments.pop();
            }
            segments
        };
        let mut plans = vec![("checkpointing every block".to_owned(), plan(1))];
        let root = (blocks as f64).sqrt().round() as usize;
        if root > 1 {
            plans.push((format!("checkpointing every {root} blocks"), plan(root)));
        }
        plans
    }

    /// Bytes of each parameter that learns, in the size that it has after the update.
    fn learned(&self) -> impl Iterator<Item = u64> {
        let learned = self.tensors.iter().filter(|tensor| tensor.role == TraceRole::Updated);
        learned.map(|tensor| {
            let dims = &self.shapes[tensor.shape as usize];
            dims.iter().fold(tensor.dtype.size() as u64, |bytes, dim| bytes * dim[0] as u64)
        })
    }

    /// Optimizers with less state, given the bytes of state for each learned element.
    fn optimizers(&self, prediction: &Prediction) -> Vec<(&'static str, Rest)> {
        let is_state = |buffer: &&Buffer| buffer.category == Category::OptimizerState && buffer.born == 0;
        let state: u64 = prediction.buffers.iter().filter(is_state).map(|buffer| buffer.bytes).sum();
        let learned: u64 = self.learned().sum();
        // AdamW keeps two numbers for each learned element, momentum keeps one.
        let numbers = state as f64 / learned.max(1) as f64;
        let mut rest = vec![];
        if numbers > 1.5 {
            rest.push(("SGD with momentum", Rest::Half));
        }
        if numbers > 0.5 {
            rest.push(("SGD without momentum", Rest::None));
            rest.push(("8-bit optimizer state", Rest::EightBits));
        }
        rest
    }
}

/// Estimated time of a step.
fn seconds(prediction: &Prediction) -> f64 {
    prediction.operations.iter().map(|operation| operation.seconds).sum()
}

/// The part of the optimizer state that remains.
#[derive(Clone, Copy)]
enum Rest {
    Half,
    EightBits,
    None,
}

impl Rest {
    fn of(self, bytes: u64) -> u64 {
        match self {
            Self::Half => bytes / 2,
            // With a scale of 4 bytes for 256 numbers (Dettmers et al. 2022).
            Self::EightBits => bytes / 4 + bytes / 256,
            Self::None => 0,
        }
    }
}
