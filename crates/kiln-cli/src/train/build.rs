//! The trainer of a run, from its settings and the options of the call.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use burn::tensor::Device;
use kiln_parallel::Communicator;
use kiln_precision::Precision;
use kiln_recovery::{Injector, Patience};
use kiln_report::counted;
use kiln_training::{Exact, StoreConfig, Trainer, TrainerBuilder, Warmup};

use super::resume::{adjust, plans_again};
use crate::cli::CallArgs;
use crate::interrupt::Interrupt;
use crate::mistake::is_mistake;
use crate::pipelines::{Pipeline, Run, SettingsOf, Setup, divided};
use crate::usage::Usage;

/// A trainer that is ready for its first step, and the rest of its run.
pub(crate) type Built<P> = (Trainer<P>, Setup<P>);

/// Builds the trainer: predicts, plans and allocates. Afterwards the settings describe how steps are taken. `store`: the directory for
/// parameters, gradients and optimizer state that do not fit into memory, unless the settings name one.
pub(crate) fn build<P: Pipeline>(
    mut run: Run<P>,
    device: &Device,
    call: &CallArgs,
    interrupt: &Interrupt,
    communicator: Option<Arc<dyn Communicator>>,
    store: Option<PathBuf>,
) -> Result<Built<P>> {
    if run.setup.total_steps() == 0 {
        bail!(Usage("the run has 0 steps, expected at least 1 epoch and 1 step".into()));
    }
    if call.given.any(&["resume", "from"]) {
        let batches = run.setup.batches();
        adjust(&mut run.setup.settings.run, &call.given, batches);
    }
    warn_of_patience(&run.setup);
    tell_of_warmup(&run.setup);
    let (builder, mut setup) = run.into_builder();
    let profile = setup.profile(device)?;
    let (sample, loader_bytes) = setup.sample()?;
    let interrupt = interrupt.clone();
    let builder = builder
        .with(|settings| settings.memory.profile = Some(profile))
        .with(|settings| settings.memory.loader_bytes = loader_bytes)
        .with(|settings| settings.memory.store = settings.memory.store.take().or(store.map(StoreConfig::Directory)))
        .with_pause(move |pause| interrupt.wait(pause));
    let exact = setup.settings.run.exact == Exact::Always;
    let builder = divided(builder, &setup.settings.run, device, communicator)?;
    let builder = with_alternatives(with_call(builder, &setup, call)?, &setup.settings, call)?;
    let trainer = builder.build(device, &sample).map_err(|error| {
        let plain = device.clone().inner();
        let devices = [plain.clone(), plain.autodiff()];
        named(refused(error, loader_bytes, exact), &devices, setup.settings.run.own_device())
    })?;
    if let Some(plan) = trainer.plan() {
        setup.note(plan, trainer.budget_bytes());
    }
    Ok((trainer, setup))
}

/// Applies the length of the run, and the options that hold for this call only.
fn with_call<'a, P: Pipeline>(
    mut builder: TrainerBuilder<'a, P>,
    setup: &Setup<P>,
    call: &CallArgs,
) -> Result<TrainerBuilder<'a, P>> {
    // An unreadable batch does not make a run of a fixed number of epochs longer.
    if let Some(epochs) = setup.epochs() {
        builder = builder.with_epochs(epochs);
    }
    if let Some(chance) = call.inject_oom {
        let faults =
            Injector::chance(chance, setup.settings.run.seed).map_err(|e| Usage(format!("--inject-oom: {e}")))?;
        builder = builder.with_guard(move |boundary| faults.check(boundary.name()));
    }
    if let Some(seconds) = call.wait_for_memory {
        builder = builder.with_patience(Patience::new(std::time::Duration::from_secs(seconds)));
    }
    if call.resume.is_some() {
        // The settings of a run determine its length.
        builder = builder.with(|settings| settings.checkpoints.other_length = true);
        builder = if plans_again(&call.given) {
            builder.with(|settings| settings.checkpoints.fresh_sizes = true)
        } else {
            builder.with(|settings| settings.memory.fixed_plan = true)
        };
    }
    Ok(builder)
}

/// Adds the precision and the optimizers that the planner may choose, and those that the report compares.
fn with_alternatives<'a, P: Pipeline>(
    mut builder: TrainerBuilder<'a, P>,
    settings: &SettingsOf<P>,
    call: &CallArgs,
) -> Result<TrainerBuilder<'a, P>> {
    let (optimizer, offload) = (settings.optimizer, settings.run.optimizer_offload);
    if call.allow_bf16 && settings.run.precision != Precision::BF16 {
        builder = builder.with_allowed_precision(Precision::BF16);
    }
    if call.allow_8bit_optimizer {
        let Some(small) = optimizer.in_8bit() else {
            let name = optimizer.name();
            bail!(Usage(format!("--allow-8bit-optimizer: {name} has no form in 8 bits, expected adamw or sgd")));
        };
        builder = match offload {
            true => builder
                .with_allowed_optimizer(kiln_training::PlannedOptimizer::on_host(small.name()), move |model| {
                    small.offloaded_groups(model)
                }),
            false => builder.with_allowed_optimizer(small.name(), move |model| small.groups(model)),
        };
    }
    builder = builder.with(|settings| settings.memory.compared_precisions.push(Precision::BF16));
    if let (Some(small), false) = (optimizer.in_8bit(), offload) {
        builder = builder.with_compared_optimizer(small.name(), move |model| small.groups(model));
    }
    Ok(builder)
}

/// If no plan fits, names the option that makes the largest part of a step smaller.
fn refused(error: kiln_training::Error, loader_bytes: u64, exact: bool) -> anyhow::Error {
    let kiln_training::Error::NothingFits { largest_bytes, least: (_, samples), .. } = &error else {
        return error.into();
    };
    let advice = match loader_bytes >= *largest_bytes {
        true => "--loader-memory makes the loader's part smaller",
        false if exact && *samples > 1 => "without --exact, batches are cut also where that changes bits",
        false if exact => "a smaller model, image or context makes it smaller",
        false => {
            "a smaller model, image or context makes it smaller, --allow-bf16 where activations are the largest part, and \
             --allow-8bit-optimizer where optimizer state is"
        }
    };
    anyhow!("{error}; {advice}")
}

/// Warns if a run has too few evaluations for its patience.
fn warn_of_patience<P: Pipeline>(setup: &Setup<P>) {
    let run = &setup.settings.run;
    let Some(patience) = run.patience.filter(|patience| *patience > 0 && run.replica.index() == 0) else { return };
    let total = setup.total_steps();
    let within = total.checked_div(run.evaluate_every).unwrap_or(0);
    let evaluations = within + total.div_ceil(setup.batches().max(1));
    if evaluations <= patience {
        tracing::warn!(
            "--patience {patience} ends no run of {}; --evaluate-every N has more of them",
            counted(evaluations, "evaluation")
        );
    }
}

/// Calls the device in an error as the command line does.
fn named(error: anyhow::Error, devices: &[Device], name: &str) -> anyhow::Error {
    let text = format!("{error:#}");
    match devices.iter().map(|device| format!("{device:?}")).rfind(|debug| text.contains(debug)) {
        Some(debug) if error.chain().any(is_mistake) => Usage(text.replace(&debug, name)).into(),
        Some(debug) => anyhow!("{}", text.replace(&debug, name)),
        None => error,
    }
}

/// Tells of a warm-up that a run ends in.
fn tell_of_warmup<P: Pipeline>(setup: &Setup<P>) {
    let (schedule, total) = (&setup.settings.schedule, setup.total_steps());
    if let (Warmup::Steps(steps), 0) = (schedule.warmup, setup.settings.run.replica.index())
        && steps > total
    {
        tracing::info!(
            "the warm-up of {steps} steps does not end in this run: its learning rate stays below the highest (--warmup)"
        );
    }
}

/// Prints the report of a batch that does not fit, which has many lines, before the error.
pub(crate) fn into_cli_error(error: kiln_training::Error) -> anyhow::Error {
    let kiln_training::Error::Exhausted { step, report } = error else { return error.into() };
    tracing::warn!("step {step}: {report}");
    anyhow!("step {step}: the batch does not fit into memory after {}", counted(report.tries.len(), "attempt"))
}
