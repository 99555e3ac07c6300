//! A pipeline's step, recorded to predict its memory.

use anyhow::{Context, Result};
use burn::tensor::Device;
use kiln_checkpointing::{Mode, Plan};
use kiln_memory::{BackendProfile, Prediction, Recomputed, StepTrace};
use kiln_training::{StepSettings, record};

use super::checkpointing::Checkpointed;

/// The same step twice: on a whole batch, and as one of several micro-batches, whose gradients are added up.
pub(crate) struct Recorded {
    whole: StepTrace,
    part: StepTrace,
}

impl Recorded {
    /// Records what `task` does under `settings`; `sample` is a batch of at least three samples.
    pub(crate) fn of<T: Checkpointed>(
        task: &T,
        settings: &StepSettings,
        sample: &T::Batch,
        init: impl Fn(&Device) -> Result<T::Model, kiln_models::Error>,
    ) -> Result<Self>
    where
        T::Model: 'static,
    {
        let once = |accumulates| {
            // The recording reports a panic as an error.
            let build = |device: &Device| init(device).unwrap_or_else(|e| panic!("{e}"));
            let trace = record(settings, accumulates, build, |model: &T::Model, recorder| {
                task.recorded(model, &task.slice(sample, 0..recorder.batch()), recorder)
            });
            trace.context("the step cannot be predicted")
        };
        Ok(Self { whole: once(false)?, part: once(true)? })
    }

    /// The step on micro-batches of `micro_batch` out of a batch of `batch`.
    pub(crate) fn trace(&self, micro_batch: usize, batch: usize) -> &StepTrace {
        if micro_batch < batch { &self.part } else { &self.whole }
    }

    /// The trace of several micro-batches, which is what a smaller size than the batch needs.
    pub(crate) fn part(&self) -> &StepTrace {
        &self.part
    }

    /// Number of blocks that can be checkpointed.
    pub(crate) fn blocks(&self) -> usize {
        self.whole.blocks()
    }

    /// What a step takes under a plan.
    pub(crate) fn predict(
        &self,
        plan: &Plan,
        micro_batch: usize,
        batch: usize,
        profile: &BackendProfile,
    ) -> Result<Prediction> {
        let trace = self.trace(micro_batch, batch).with_plan(&segments(plan))?;
        Ok(trace.predict(micro_batch.min(batch), profile)?)
    }
}

/// The segments of a plan that are recomputed.
pub(crate) fn segments(plan: &Plan) -> Vec<Recomputed> {
    let recomputed = plan.segments().iter().filter(|segment| segment.mode != Mode::Plain);
    recomputed
        .map(|segment| Recomputed { blocks: segment.blocks.clone(), offloaded: segment.mode == Mode::Offload })
        .collect()
}
