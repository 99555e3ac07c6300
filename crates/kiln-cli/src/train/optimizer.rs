//! Applies the options about the optimizer to the settings of a run.

use crate::pipelines::{PipelineSettings, usual_rate};
use crate::usage::Usage;
use anyhow::Result;
use kiln_training::{BatchRule, BatchScaling};

use crate::cli::RunArgs;

/// Applies the options about the optimizer to settings that are otherwise complete: their meaning depends on the recipe's optimizer.
///
/// # Errors
/// [`Usage`] for an unknown name, invalid numbers of an optimizer, and a base batch of 0.
pub(crate) fn lay_optimizer_over(settings: &mut impl PipelineSettings, arguments: &RunArgs) -> Result<()> {
    let options = &arguments.step.optimizer;
    if let Some(name) = &options.optimizer {
        let before = settings.optimizer();
        let after = before.switched(name).map_err(|error| Usage(error.to_string()))?;
        *settings.optimizer_mut() = after;
        let factor = usual_rate(&after) / usual_rate(&before);
        if arguments.learning_rate.is_none() && factor != 1.0 {
            settings.schedule_mut().peak *= factor;
            tracing::info!("learning rate {:.2e} for {name}; --learning-rate sets another", settings.schedule().peak);
        }
    }
    if let Some(decay) = options.weight_decay {
        *settings.optimizer_mut() = settings.optimizer().with_weight_decay(decay);
    }
    settings.optimizer().check().map_err(|error| Usage(error.to_string()))?;
    if options.optimizer_offload {
        settings.run_mut().optimizer_offload = true;
    }
    if let Some(base_batch) = arguments.base_batch {
        let rule = match arguments.batch_rule.as_deref() {
            Some("linear") => BatchRule::Linear,
            Some(_) => BatchRule::Sqrt, // there are two
            None if settings.optimizer().follows_gradient() => BatchRule::Linear,
            None => BatchRule::Sqrt,
        };
        if base_batch == 0 {
            return Err(Usage("--base-batch is 0, expected at least 1".into()).into());
        }
        settings.run_mut().batch_scaling = Some(BatchScaling { rule, base_batch: base_batch as usize });
    }
    Ok(())
}
