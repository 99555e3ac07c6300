//! The error of a step that no plan makes fit.

use kiln_memory::fits_within;

use super::planner::Planner;
use super::stage_plan::{StageLoad, StagePlan};
use super::step_plan::StepPlan;
use crate::error::Error;

impl Planner {
    /// The error that names the plan with the lowest peak and the largest part of its memory, or its tensor above the largest buffer.
    pub(crate) fn nothing_fits(&self, limit_bytes: u64, smallest: &StepPlan) -> Result<Error, Error> {
        let step = self.planner_for(smallest).step_in(smallest.precision)?;
        let largest_buffer = |samples| {
            let profile = self.profile(samples, smallest.batch);
            Ok(step.estimate(&smallest.checkpoints, samples, smallest.batch, profile)?.largest_buffer_bytes)
        };
        if let Some(error) = self.too_large(limit_bytes, smallest, largest_buffer)? {
            return Ok(error);
        }
        let largest = self.predict(smallest)?.breakdown.0.into_iter().max_by_key(|(_, bytes)| *bytes);
        let (largest, largest_bytes) =
            largest.map_or((String::new(), 0), |(category, bytes)| (category.to_string(), bytes));
        let least = (smallest.peak_bytes, smallest.micro_batch);
        Ok(Error::NothingFits { limit_bytes, least, largest, largest_bytes })
    }

    /// As [`nothing_fits`](Self::nothing_fits), for a step that is divided among devices.
    pub(super) fn no_stages_fit(&self, limit_bytes: u64, smallest: &StagePlan) -> Result<Error, Error> {
        let StepPlan { precision, checkpoints, .. } = &smallest.step;
        let planner = self.planner_for(smallest);
        let largest_buffer = |samples| {
            let plan = planner.evaluate_stages(*precision, checkpoints, samples, &smallest.layout, limit_bytes)?;
            Ok(plan.largest_buffer_bytes())
        };
        if let Some(error) = self.too_large(limit_bytes, smallest, largest_buffer)? {
            return Ok(error);
        }
        let largest = smallest.loads.iter().map(StageLoad::largest).max_by_key(|(_, bytes)| *bytes);
        let (largest, largest_bytes) = largest.unwrap_or_default();
        let least = (smallest.peak_bytes, smallest.micro_batch);
        Ok(Error::NothingFits { limit_bytes, least, largest: largest.into(), largest_bytes })
    }

    /// The error of a plan whose bytes fit and that has a tensor above the device's largest buffer. It names the first half, quarter and so on
    /// of the micro-batch that has none, or else the largest tensor of one sample.
    fn too_large(
        &self,
        limit_bytes: u64,
        plan: &StepPlan,
        largest: impl Fn(usize) -> Result<u64, Error>,
    ) -> Result<Option<Error>, Error> {
        let Some(largest_buffer) = self.profile.largest_buffer else { return Ok(None) };
        let bytes = largest(plan.micro_batch)?;
        if bytes <= largest_buffer || !fits_within(plan.peak_bytes, limit_bytes) {
            return Ok(None);
        }
        let (mut samples, mut least) = (plan.micro_batch, bytes);
        while samples > 1 && least > largest_buffer {
            samples /= 2;
            least = largest(samples)?;
        }
        let helps = least <= largest_buffer;
        let (bytes, micro_batch) = if helps { (bytes, Some(samples)) } else { (least, None) };
        Ok(Some(Error::BufferTooLarge { bytes, largest_buffer, micro_batch }))
    }
}
