//! A run that continues, perhaps with changed settings.

use anyhow::{Result, bail};
use kiln_report::counted;
use kiln_runs::CONFIG;
use kiln_runs::replace;
use kiln_training::{Exact, Recompute, Trainer};
use toml::Table;

use super::history::{Change, differences, write_changes};
use crate::cli::CallArgs;
use crate::given::GivenNames;
use crate::pipelines::{Pipeline, RunSettings, SettingsOf};
use crate::run_directory::RunDirectory;
use crate::settings_file::SettingsFile;
use crate::usage::Usage;

/// Whether the options require a new plan of steps.
pub(super) fn plans_again(given: &GivenNames) -> bool {
    given.any(&["memory", "micro_batch", "checkpointing"])
}

/// Adapts the settings of a continued run to the options that are given. `batches`: those of an epoch.
///
/// `--max-steps` alone sets the length of the run, whatever its number of epochs. With `--epochs` alone, the earlier number of steps is
/// no limit. A new plan does not depend on the earlier one.
pub(super) fn adjust(run: &mut RunSettings, given: &GivenNames, batches: u64) {
    match (run.max_steps, given.any(&["max_steps"]), given.any(&["epochs"])) {
        (Some(steps), true, false) => run.epochs = run.epochs.max(steps.div_ceil(batches.max(1))),
        (_, false, true) => run.max_steps = None,
        _ => {}
    }
    if run.memory.is_some() && plans_again(given) {
        if run.parallel.stages.is_none() {
            run.optimizer_offload = given.any(&["optimizer_offload"]);
        }
        if run.exact != Exact::Always && !given.any(&["micro_batch"]) {
            run.micro_batch = None;
        }
        run.planned_micro_batch = None;
        if !given.any(&["checkpointing"]) {
            run.checkpointing = Recompute::None;
        }
    }
}

/// The settings that a continued run writes into its settings file: from `now` those that a call may change for the rest of the run, and
/// all others as the run `had` them. The device and the division among devices apply to the present call only.
fn settings_to_record<P: Pipeline>(mut had: SettingsOf<P>, now: &SettingsOf<P>, planned: bool) -> SettingsOf<P> {
    had.schedule = now.schedule;
    let (run, now) = (&mut had.run, now.run.clone());
    (run.epochs, run.max_steps, run.patience) = (now.epochs, now.max_steps, now.patience);
    run.reduce_after = now.reduce_after;
    (run.evaluate_every, run.save_every, run.keep) = (now.evaluate_every, now.save_every, now.keep);
    (run.workers, run.loader_memory, run.bad_samples) = (now.workers, now.loader_memory, now.bad_samples);
    (run.clip_norm, run.store) = (now.clip_norm, now.store);
    if planned {
        (run.memory, run.micro_batch, run.checkpointing) = (now.memory, now.micro_batch, now.checkpointing);
        run.planned_micro_batch = now.planned_micro_batch;
        run.optimizer_offload = now.optimizer_offload;
    }
    had
}

/// Writes the changes of a run that has taken `step` steps into its history and its settings file, and returns them.
fn record<P: Pipeline>(
    directory: &RunDirectory,
    now: &SettingsOf<P>,
    given: &GivenNames,
    step: u64,
) -> Result<Vec<Change>> {
    let file = directory.file(CONFIG);
    let had = SettingsFile::of_run(&file)?.settings::<P>()?;
    let before = Table::try_from(&had)?;
    let after = settings_to_record::<P>(had, now, plans_again(given));
    let changes = differences(&before, &Table::try_from(&after)?);
    if !changes.is_empty() {
        write_changes(directory, step, &changes)?;
        replace(&file, toml::to_string_pretty(&after)?.as_bytes())?;
    }
    Ok(changes)
}

/// Refuses a length that the run has passed.
pub(super) fn check_length(call: &CallArgs, run: &RunSettings, step: u64, total: u64) -> Result<()> {
    let given = [("--max-steps", "max_steps", run.max_steps), ("--epochs", "epochs", Some(run.epochs))];
    match given.into_iter().find(|(_, name, _)| call.given.any(&[*name])) {
        Some((option, _, Some(value))) if total < step => {
            let taken = counted(step, "step");
            bail!(Usage(format!("{option} is {value}, and the run has taken {taken}, expected at least as many")))
        }
        _ => Ok(()),
    }
}

/// Writes the changed settings of a continued run.
pub(super) fn note_changes<P: Pipeline>(
    trainer: &mut Trainer<P>,
    settings: &SettingsOf<P>,
    directory: &RunDirectory,
    given: &GivenNames,
) -> Result<()> {
    let state = trainer.state();
    let changes = record::<P>(directory, settings, given, state.step)?;
    for change in &changes {
        tracing::info!("{change}");
    }
    let of_rate = |change: &Change| {
        change.setting.starts_with("schedule.")
            || ["run.max_steps", "run.epochs", "run.reduce_after"].contains(&change.setting.as_str())
    };
    if changes.iter().any(of_rate) && trainer.total_steps().is_some_and(|total| state.position() < total) {
        tracing::info!("learning rate of step {}: {:.2e}", state.next_step(), trainer.learning_rate()?);
    }
    if plans_again(given) {
        trainer.save()?; // with the sizes of the new plan
    }
    Ok(())
}

/// How a run has ended, and how to train it further. `None` if it has not ended.
pub(super) fn ended<P: Pipeline>(trainer: &Trainer<P>, patience: Option<u64>, command: &str) -> Option<String> {
    let (state, progress) = (trainer.state(), trainer.progress());
    let step = state.step;
    if trainer.total_steps().is_some_and(|total| state.position() >= total) {
        let more = step.saturating_mul(2);
        return Some(format!("already finished at step {step}; to train further: {command} --max-steps {more}"));
    }
    let patience = patience.filter(|patience| *patience > 0)?;
    progress.is_over(Some(patience)).then(|| {
        let (count, more) = (progress.without_improvement, progress.without_improvement.saturating_mul(2));
        format!(
            "ended early at step {step}, after {} without a better {}; to train further: {command} --patience {more}",
            counted(count, "evaluation"),
            P::METRIC
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipelines::{MemorySetting, NextToken, next_token};

    #[test]
    fn a_length_is_not_cut_short_by_the_one_before() {
        for (epochs, max_steps, expected) in [
            (None, Some(1000), (17, Some(1000))),
            (None, Some(10), (12, Some(10))),
            (Some(3), None, (3, None)),
            (Some(3), Some(1000), (3, Some(1000))),
            (None, None, (12, Some(100))),
        ] {
            let given = [("epochs", epochs), ("max_steps", max_steps)].into_iter().filter(|(_, value)| value.is_some());
            let given = GivenNames::of(given.map(|(name, _)| name));
            let mut run = RunSettings::new(epochs.unwrap_or(12), 64);
            run.max_steps = max_steps.or(Some(100));
            adjust(&mut run, &given, 62);
            assert_eq!((run.epochs, run.max_steps), expected);
        }
    }

    #[test]
    fn a_new_plan_keeps_nothing_of_the_one_before() {
        let mut run = RunSettings::new(1, 64);
        (run.memory, run.micro_batch) = (Some(MemorySetting::Bytes(1 << 30)), Some(4));
        run.planned_micro_batch = Some(2);
        (run.checkpointing, run.optimizer_offload) = (Recompute::Sqrt, true);
        adjust(&mut run, &GivenNames::default(), 1);
        assert_eq!(
            (run.micro_batch, run.planned_micro_batch, &run.checkpointing),
            (Some(4), Some(2), &Recompute::Sqrt)
        );
        adjust(&mut run, &GivenNames::of(["memory"]), 1);
        assert_eq!((run.micro_batch, &run.checkpointing, run.optimizer_offload), (None, &Recompute::None, false));
        assert_eq!(run.planned_micro_batch, None);
    }

    #[test]
    fn changes_are_recorded_once_and_the_device_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = next_token::recipe();
        let directory = RunDirectory::create(Some(&folder.path().join("run")), "gpt", &settings).unwrap();
        (settings.run.keep, settings.run.device) = (7, "cuda:3".into());
        settings.schedule.peak = 1e-4;
        let names = || {
            let changes = record::<NextToken>(&directory, &settings, &GivenNames::default(), 5).unwrap();
            changes.into_iter().map(|change| change.setting).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["run.keep", "schedule.peak"]);
        assert!(names().is_empty());
        let text = std::fs::read_to_string(directory.file(CONFIG)).unwrap();
        assert!(text.contains("keep = 7") && text.contains("device = \"flex\""), "{text}");
    }
}
