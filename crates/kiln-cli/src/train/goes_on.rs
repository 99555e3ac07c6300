//! A run that continues with changed settings.

use crate::atomic::replace;
use crate::pipelines::{PipelineSettings, RunSettings, SharedTask};
use crate::usage::Usage;
use anyhow::{Result, bail};
use kiln_training::Trainer;
use toml::Table;

use super::directory::{CONFIG, RunDirectory};
use super::history::{Change, differences, write_changes};
use super::overlay::read;
use crate::cli::RunArgs;
use crate::words::counted;

/// Whether the options require a new plan of steps.
pub(super) fn plans_again(arguments: &RunArgs) -> bool {
    arguments.step.memory.is_some() || arguments.step.micro_batch.is_some() || arguments.step.checkpointing.is_some()
}

/// Adapts the settings of a continued run to the options. `batches`: those of an epoch.
///
/// `--max-steps` alone sets the length of the run, whatever its number of epochs. With `--epochs` alone, the earlier number of steps is
/// no limit. A new plan does not depend on the earlier one.
pub(super) fn adjust(run: &mut RunSettings, arguments: &RunArgs, batches: usize) {
    match (arguments.max_steps, arguments.epochs) {
        (Some(steps), None) => run.epochs = run.epochs.max(u64::from(steps).div_ceil((batches as u64).max(1))),
        (None, Some(_)) => run.max_steps = None,
        _ => {}
    }
    if run.memory.is_some() && plans_again(arguments) {
        if run.parallel.stages.is_none() {
            run.optimizer_offload = arguments.step.optimizer.optimizer_offload;
        }
        if arguments.step.micro_batch.is_none() {
            run.micro_batch = None;
        }
        if arguments.step.checkpointing.is_none() {
            run.checkpointing = kiln_training::Recompute::None;
        }
    }
}

/// Takes the settings that a continued run keeps from `now`, and all others from those that it `had`. The device and the division among
/// devices apply to the present call only.
fn kept<S: PipelineSettings>(mut had: S, now: &S, planned: bool) -> S {
    had.schedule_mut().peak = now.schedule().peak;
    let (run, now) = (had.run_mut(), now.run().clone());
    (run.epochs, run.max_steps, run.patience) = (now.epochs, now.max_steps, now.patience);
    (run.evaluate_every, run.save_every, run.keep) = (now.evaluate_every, now.save_every, now.keep);
    (run.workers, run.loader_memory, run.bad_samples) = (now.workers, now.loader_memory, now.bad_samples);
    run.clip_norm = now.clip_norm;
    if planned {
        (run.memory, run.micro_batch, run.checkpointing) = (now.memory, now.micro_batch, now.checkpointing);
        run.optimizer_offload = now.optimizer_offload;
    }
    had
}

/// Writes the changes of a run that has taken `step` steps into its history and its settings file, and returns them.
fn record<S: PipelineSettings>(
    directory: &RunDirectory,
    now: &S,
    arguments: &RunArgs,
    step: u64,
) -> Result<Vec<Change>> {
    let file = directory.file(CONFIG);
    let had: S = read(&file)?.try_into()?;
    let before = Table::try_from(&had)?;
    let after = kept(had, now, plans_again(arguments));
    let changes = differences(&before, &Table::try_from(&after)?);
    if !changes.is_empty() {
        write_changes(directory, step, &changes)?;
        replace(&file, toml::to_string_pretty(&after)?.as_bytes())?;
    }
    Ok(changes)
}

/// Refuses a length that the run has passed.
pub(super) fn check_length(arguments: &RunArgs, step: u64, total: u64) -> Result<()> {
    let given = [("--max-steps", arguments.max_steps), ("--epochs", arguments.epochs)];
    match given.iter().find_map(|(option, value)| Some((option, (*value)?))) {
        Some((option, value)) if total < step => {
            bail!(Usage(format!(
                "{option} is {value}, and the run has taken {}, expected at least as many",
                counted(step, "step")
            )))
        }
        _ => Ok(()),
    }
}

/// Writes the changed settings of a continued run.
pub(super) fn note_changes<T: SharedTask, S: PipelineSettings>(
    trainer: &mut Trainer<T>,
    settings: &S,
    directory: &RunDirectory,
    arguments: &RunArgs,
) -> Result<()> {
    let state = trainer.state();
    let changes = record(directory, settings, arguments, state.step)?;
    for change in &changes {
        tracing::info!("{change}");
    }
    let of_rate = |change: &Change| ["schedule.peak", "run.max_steps", "run.epochs"].contains(&change.setting.as_str());
    if changes.iter().any(of_rate) && trainer.total_steps().is_some_and(|total| state.position() < total) {
        tracing::info!("learning rate of step {}: {:.2e}", state.next_step(), trainer.learning_rate()?);
    }
    if plans_again(arguments) {
        trainer.save()?; // with the sizes of the new plan
    }
    Ok(())
}

/// How a run has ended, and how to train it further. `None` if it has not ended.
pub(super) fn ended<T: SharedTask>(
    trainer: &Trainer<T>,
    metric: &str,
    patience: Option<u64>,
    go_on: &str,
) -> Option<String> {
    let (state, progress) = (trainer.state(), trainer.progress());
    let step = state.step;
    if trainer.total_steps().is_some_and(|total| state.position() >= total) {
        let more = step.saturating_mul(2);
        return Some(format!("already finished at step {step}; to train further: {go_on} --max-steps {more}"));
    }
    let patience = patience.filter(|patience| *patience > 0)?;
    progress.is_over(Some(patience)).then(|| {
        let (count, more) = (progress.without_improvement, progress.without_improvement.saturating_mul(2));
        format!(
            "ended early at step {step}, after {} without a better {metric}; to train further: {go_on} --patience {more}",
            counted(count, "evaluation")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::StepArgs;
    use crate::pipelines::{MemorySetting, next_token_recipe};
    use kiln_training::Recompute;

    #[test]
    fn a_length_is_not_cut_short_by_the_one_before() {
        let run = || RunSettings { epochs: 12, max_steps: Some(100), ..RunSettings::new(12, 64) };
        let adjusted = |arguments: RunArgs| {
            let mut run = run();
            run.max_steps = arguments.max_steps.map(u64::from).or(run.max_steps);
            run.epochs = arguments.epochs.map_or(run.epochs, u64::from);
            adjust(&mut run, &arguments, 62);
            (run.epochs, run.max_steps)
        };
        assert_eq!(adjusted(RunArgs { max_steps: Some(1000), ..RunArgs::default() }), (17, Some(1000)));
        assert_eq!(adjusted(RunArgs { max_steps: Some(10), ..RunArgs::default() }), (12, Some(10)));
        assert_eq!(adjusted(RunArgs { epochs: Some(3), ..RunArgs::default() }), (3, None));
        let both = RunArgs { epochs: Some(3), max_steps: Some(1000), ..RunArgs::default() };
        assert_eq!(adjusted(both), (3, Some(1000)));
        assert_eq!(adjusted(RunArgs::default()), (12, Some(100)));
    }

    #[test]
    fn a_new_plan_keeps_nothing_of_the_one_before() {
        let mut run = RunSettings::new(1, 64);
        (run.memory, run.micro_batch) = (Some(MemorySetting::Bytes(1 << 30)), Some(4));
        (run.checkpointing, run.optimizer_offload) = (Recompute::Sqrt, true);
        let arguments =
            RunArgs { step: StepArgs { memory: Some("1GiB".into()), ..StepArgs::default() }, ..RunArgs::default() };
        adjust(&mut run, &RunArgs::default(), 1);
        assert_eq!((run.micro_batch, &run.checkpointing), (Some(4), &Recompute::Sqrt));
        adjust(&mut run, &arguments, 1);
        assert_eq!((run.micro_batch, &run.checkpointing, run.optimizer_offload), (None, &Recompute::None, false));
    }

    #[test]
    fn changes_are_recorded_once_and_the_device_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = next_token_recipe();
        let directory = RunDirectory::create(Some(&folder.path().join("run")), "gpt", &settings).unwrap();
        (settings.run.keep, settings.run.device) = (7, "cuda:3".into());
        settings.schedule.peak = 1e-4;
        let arguments = RunArgs::default();
        let names = |changes: Vec<Change>| changes.into_iter().map(|change| change.setting).collect::<Vec<_>>();
        assert_eq!(names(record(&directory, &settings, &arguments, 5).unwrap()), ["run.keep", "schedule.peak"]);
        assert!(record(&directory, &settings, &arguments, 5).unwrap().is_empty());
        let text = std::fs::read_to_string(directory.file(CONFIG)).unwrap();
        assert!(text.contains("keep = 7") && text.contains("device = \"flex\""), "{text}");
    }
}
