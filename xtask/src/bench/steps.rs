//! A step of a reference pipeline, in its process.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use clap::Parser;
use kiln_memory::{Kernels, Meter};
use kiln_models::Checkpoint;
use kiln_training::{ScheduleConfig, StepSettings, Task, Trainer, step};

use super::case::{Case, Loop};
use super::child::{Footprint, Turn, serve, timed};
use crate::HEAP;
use crate::cli::{Cli, Command, RunArgs, Train};
use crate::process::{Resident, living_threads_seconds};
use crate::train::checkpointing::{Checkpointed, Checkpointing, Heap, decide};
use crate::train::drive::{Init, Run};
use crate::train::settings::Settings;
use crate::train::{gpt, resnet};

/// Batches that steps go through in turn. They are there before anything is measured.
const BATCHES: usize = 4;
/// A rate at which nothing grows without bounds, however many rounds there are.
const RATE: f64 = 1e-4;
/// Steps before the measured ones: the first makes the optimizer's state.
const WARMUP: usize = 2;
/// Within so many steps a loss scale falls from its start to where nothing overflows.
const PATIENCE: usize = 40;

/// The options of `train` that a case stands for.
pub(crate) fn arguments(case: &Case, device: &str) -> Result<Train> {
    let words = ["xtask", "train", case.group.name(), "--device", device];
    match Cli::try_parse_from(words.into_iter().chain(case.options.iter().copied()))?.command {
        Command::Train(train) => Ok(train),
        _ => bail!("{case} does not train"),
    }
}

/// Takes steps when it is told to.
pub(crate) fn run(case: &Case, takes: Loop, device: &str) -> Result<ExitCode> {
    match arguments(case, device)? {
        Train::Resnet(arguments) => {
            resnet::prepared(arguments, |run, device, arguments, init| turns(run, device, arguments, init, takes))
        }
        Train::Gpt(arguments) => {
            gpt::prepared(arguments, |run, device, arguments, init| turns(run, device, arguments, init, takes))
        }
    }
}

/// What takes the steps.
#[allow(clippy::large_enum_variant, reason = "there is one")]
pub(crate) enum Stepper<M> {
    Burn { model: Option<M>, optimizer: ModuleOptimizer },
    Kiln(Trainer<M>),
}

impl<M: Module> Stepper<M> {
    /// Whether the step was taken, failed attempts, and micro-batches.
    fn step<T: Task<Model = M>>(
        &mut self,
        task: &T,
        batch: &T::Batch,
        device: &Device,
    ) -> Result<(bool, usize, usize)> {
        match self {
            Self::Burn { model, optimizer } => {
                let Some(plain) = model.take() else { bail!("the model was lost in a step that failed") };
                let loss = task.loss(&plain, batch, device);
                let value: f32 = loss.clone().into_scalar();
                ensure!(value.is_finite(), "the loss is {value}");
                let gradients = GradientsParams::from_grads(loss.backward(), &plain);
                *model = Some(optimizer.step(RATE, plain, gradients));
                Ok((true, 0, 1))
            }
            Self::Kiln(trainer) => {
                let report = step(task, trainer, batch)?;
                Ok((!report.skipped, report.failures, report.micro_batches))
            }
        }
    }
}

/// A run whose settings are those of the case alone: the recipes clip, a case does when its options say so.
pub(crate) fn bare<T: Task, S: Settings>(run: &mut Run<T, S>, arguments: &RunArgs) -> Result<Vec<T::Batch>> {
    run.settings.run_mut().clip_norm = arguments.clip_norm;
    run.schedule = ScheduleConfig { peak: RATE, warmup: 0.0, floor: 1.0 };
    let batches = run.data.train.epoch(0, 0).take(BATCHES).collect::<Result<Vec<_>, _>>()?;
    ensure!(!batches.is_empty(), "there is no batch");
    Ok(batches)
}

/// Kiln's step with what the settings say, and neither recovery nor guard.
pub(crate) fn trainer<T: Checkpointed<Model: 'static>, S: Settings>(
    run: &mut Run<T, S>,
    batch: &T::Batch,
    device: &Device,
    init: Init<'_, T::Model>,
    on_heap: bool,
) -> Result<Trainer<T::Model>> {
    let settings = run.settings.run().clone();
    let step = StepSettings {
        max_norm: settings.clip_norm,
        micro_batch: settings.micro_batch,
        policy: settings.policy(),
        ..StepSettings::new(run.optimizer, run.schedule, u64::MAX, device.clone())
    };
    let baseline = HEAP.live_bytes();
    let trainer = Trainer::new(init(device)?, settings.seed, step)?;
    if settings.checkpointing != Checkpointing::None {
        let samples = run.task.samples(batch).min(settings.micro_batch.unwrap_or(usize::MAX));
        let batch = || Ok(run.task.slice(batch, 0..samples));
        let heap = on_heap.then_some(Heap { baseline, accumulates: settings.micro_batch.is_some() });
        let plan = decide(settings.checkpointing, &run.task, trainer.model(), batch, device, run.optimizer, heap)?;
        run.task.follow(vec![plan]);
    }
    Ok(trainer)
}

fn turns<T: Checkpointed<Model: Checkpoint + 'static>, S: Settings>(
    mut run: Run<T, S>,
    plain: &Device,
    arguments: &RunArgs,
    init: Init<'_, T::Model>,
    takes: Loop,
) -> Result<ExitCode> {
    let device = plain.clone().autodiff();
    let batches = bare(&mut run, arguments)?;
    // Threads have their scratch memory from here on.
    let profile = crate::profile::of(&device, &run.settings.run().device)?;
    let mut resident = Resident::start();
    let own_meter = Meter::of(plain, &HEAP);
    let (mut stepper, meter) = match takes {
        Loop::Burn => {
            device.seed(run.settings.run().seed);
            let model = init(&device)?;
            let optimizer = run.optimizer.init(&model);
            (Stepper::Burn { model: Some(model), optimizer }, &own_meter)
        }
        Loop::Kiln => {
            device.seed(run.settings.run().seed);
            let on_heap = profile.kernels == Kernels::Flex;
            (Stepper::Kiln(trainer(&mut run, &batches[0], &device, init, on_heap)?), &own_meter)
        }
        Loop::Armed => {
            let started = run.start(plain, arguments, init)?;
            (Stepper::Kiln(started.trainer), started.meter)
        }
    };

    let mut next = batches.iter().cycle();
    let mut turn = || -> Result<Turn> {
        let Some(batch) = next.next() else { bail!("there is no batch") };
        meter.reset_peak();
        let (taken, seconds, processor_seconds) = timed(living_threads_seconds, || {
            let taken = stepper.step(&run.task, batch, &device)?;
            device.sync()?;
            anyhow::Ok(taken)
        });
        let (counts, failures, micro_batches) = taken?;
        let _ = meter.live_bytes(); // a pool says its peak by being read
        Ok(Turn { seconds, processor_seconds, peak_bytes: meter.peak_bytes(), counts, failures, micro_batches })
    };
    let mut applied = 0;
    for _ in 0..PATIENCE {
        applied += usize::from(turn()?.counts);
        if applied == WARMUP {
            break;
        }
    }
    ensure!(applied == WARMUP, "gradients still overflow after {PATIENCE} steps");
    resident.reset_peak();
    serve(turn, || Footprint { resident_bytes: resident.above_start(), reserved_bytes: meter.reserved_bytes() })?;
    Ok(ExitCode::SUCCESS)
}
