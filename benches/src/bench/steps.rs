//! Steps of a reference pipeline, taken in this process.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Result, bail, ensure};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use kiln_data::Replica;
use kiln_memory::{BackendProfile, Meter};
use kiln_parallel::{Communicator, Local};
use kiln_training::{Exact, Pass, Recompute, ScheduleConfig, Task, Trainer, TrainerBuilder};

use super::case::{Case, Loop};
use super::child::{Footprint, Turn, serve, timed};
use kiln_cli::HEAP;
use kiln_cli::pipelines::classify::Network;
use kiln_cli::pipelines::{Classify, NextToken, Pipeline, Run, RunSettings, Setup, classify, divided, next_token};
use kiln_cli::process::{Resident, living_threads_seconds};

/// The number of batches that steps use in turn. They are loaded before the measurement.
const BATCHES: usize = 4;
/// A learning rate at which no run diverges, whatever the number of rounds.
const RATE: f64 = 1e-4;
const SCHEDULE: ScheduleConfig = ScheduleConfig::constant(RATE);
/// Steps before the measured ones: the first one allocates the optimizer's state.
const WARMUP: usize = 2;
/// The number of steps within which a loss scale falls from its start to a value without overflow.
const PATIENCE: usize = 40;

/// The ResNet of a case, and its device. `rank` is the number of the replica.
pub(crate) fn resnet(case: &Case, device: &str, rank: usize) -> Result<(Run<Classify>, Device)> {
    let data = classify::open(None)?;
    let mut settings = classify::fixture_recipe(&data.train, classify::DEFAULT, None)?;
    case.apply(&mut settings.run, device)?;
    place(&mut settings.run, rank)?;
    settings.model = Network(settings.model.0.with_lean(case.lean()));
    settings.schedule = SCHEDULE;
    classify::run(settings, data)
}

/// The GPT of a case, and its device.
pub(crate) fn gpt(case: &Case, device: &str, rank: usize) -> Result<(Run<NextToken>, Device)> {
    let mut settings = next_token::fixture_recipe();
    case.apply(&mut settings.run, device)?;
    place(&mut settings.run, rank)?;
    settings.model = settings.model.with_lean(case.lean());
    settings.schedule = SCHEDULE;
    next_token::run(settings)
}

/// Sets the replica of a run, among those that its settings ask for.
fn place(run: &mut RunSettings, rank: usize) -> Result<()> {
    if let Some(replicas) = &run.parallel.replicas {
        run.replica = Replica::new(rank, replicas.here.count())?;
    }
    Ok(())
}

/// The batches that steps use.
pub(crate) fn batches<P: Pipeline>(run: &Run<P>) -> Result<Vec<P::Batch>> {
    let batches = run.setup.data.train.epoch(0, 0).take(BATCHES).collect::<Result<Vec<_>, _>>()?;
    ensure!(!batches.is_empty(), "there is no batch");
    Ok(batches)
}

/// The builder of a case's trainer, its sample, and the rest of the run.
pub(crate) type Prepared<P> = (TrainerBuilder<'static, P>, <P as Task>::Batch, Setup<P>);

/// Prepares the trainer of a case. [`Loop::Kiln`] has no recovery, and no prediction unless a setting needs one.
pub(crate) fn prepare<P: Pipeline>(run: Run<P>, profile: BackendProfile, takes: Loop) -> Result<Prepared<P>> {
    let (builder, setup) = run.into_builder();
    let (sample, loader_bytes) = setup.sample()?;
    let builder = builder.with(|settings| settings.memory.profile = Some(profile));
    // A step without a prediction adds gradients in any order: all do here, so that they differ in what a case is about alone.
    let builder = builder.with(|settings| settings.memory.exact = Exact::Never);
    let builder = match takes {
        Loop::Armed => builder.with(|settings| settings.memory.loader_bytes = loader_bytes),
        _ if setup.settings.run.checkpointing == Recompute::None && setup.settings.run.parallel.stages.is_none() => {
            builder.with_recovery(false).with_prediction(false)
        }
        _ => builder.with_recovery(false),
    };
    Ok((builder, sample, setup))
}

/// The loop that takes the steps.
#[allow(clippy::large_enum_variant, reason = "there is one")]
enum Stepper<T: Task> {
    Burn {
        task: T,
        model: Option<T::Model>,
        optimizer: ModuleOptimizer,
    },
    /// This trainer takes the steps together with those of the other replicas.
    Kiln {
        trainer: Trainer<T>,
        others: Vec<Sender<()>>,
    },
}

/// The figures of a step.
struct Taken {
    /// Whether the parameters were updated.
    counts: bool,
    failures: usize,
    micro_batches: usize,
}

impl<T: Task> Stepper<T> {
    fn step(&mut self, batch: &T::Batch, device: &Device) -> Result<Taken> {
        match self {
            Self::Burn { task, model, optimizer } => {
                let Some(plain) = model.take() else { bail!("the model was lost in a step that failed") };
                let loss = task.loss(&Pass::plain(&plain, device), batch);
                let value: f32 = loss.clone().into_scalar();
                ensure!(value.is_finite(), "the loss is {value}");
                let gradients = GradientsParams::from_grads(loss.backward(), &plain);
                *model = Some(optimizer.step(RATE, plain, gradients));
                Ok(Taken { counts: true, failures: 0, micro_batches: 1 })
            }
            Self::Kiln { trainer, others } => {
                for other in others {
                    let _ = other.send(()); // one that has failed ends the step of all with its error
                }
                let report = trainer.step(batch)?;
                let (failures, micro_batches) = (report.failures, report.micro_batches);
                Ok(Taken { counts: !report.skipped, failures, micro_batches })
            }
        }
    }
}

/// Takes the steps of another replica.
fn follow<P: Pipeline>(
    run: Run<P>,
    (device, profile): (&Device, BackendProfile),
    takes: Loop,
    communicator: Local,
    goes: &Receiver<()>,
) -> Result<()> {
    let batches = batches(&run)?;
    let (builder, sample, setup) = prepare(run, profile, takes)?;
    let builder = divided(builder, &setup.settings.run, device, Some(Arc::new(communicator)))?;
    let mut trainer = builder.build(device, &sample)?;
    for (batch, ()) in batches.iter().cycle().zip(goes) {
        let _ = trainer.step(batch)?;
    }
    Ok(())
}

/// Takes steps on request.
///
/// `other` makes the run of another replica.
pub(crate) fn turns<P: Pipeline>(
    run: Run<P>,
    plain: &Device,
    takes: Loop,
    other: impl Fn(usize) -> Result<Run<P>> + Clone + Send + 'static,
) -> Result<ExitCode> {
    let device = plain.clone().autodiff();
    let batches = batches(&run)?;
    // From here on, threads have their scratch memory.
    let profile = run.setup.profile(&device)?;
    let mut resident = Resident::start();
    let own_meter = Meter::of(plain, &HEAP);
    // The data set is live before the model is built, and must stay so: peaks are relative to the bytes of that moment.
    let (mut stepper, setup) = match takes {
        Loop::Burn => {
            let Run { task, init, setup, .. } = run;
            device.seed(setup.settings.run.seed);
            let model = init(&device)?;
            let optimizer = setup.settings.optimizer.groups(&model).init();
            (Stepper::Burn { task, model: Some(model), optimizer }, setup)
        }
        Loop::Kiln | Loop::Armed => {
            let mut others = vec![];
            let replicas = run.setup.settings.run.replica.count();
            let mut group = Local::group(replicas).into_iter();
            let own = group.next().map(|own| Arc::new(own) as Arc<dyn Communicator>);
            for (index, communicator) in group.enumerate() {
                let (go, goes) = channel();
                let (device, profile) = (device.clone(), profile.clone());
                let other = other.clone();
                others.push(go);
                thread::spawn(move || follow(other(index + 1)?, (&device, profile), takes, communicator, &goes));
            }
            let (builder, sample, setup) = prepare(run, profile, takes)?;
            let builder = divided(builder, &setup.settings.run, plain, own)?;
            (Stepper::Kiln { trainer: builder.build(&device, &sample)?, others }, setup)
        }
    };
    // The trainer's meter does not include its recording of the step.
    let meter = match &stepper {
        Stepper::Kiln { trainer, .. } => trainer.meter().cloned().unwrap_or(own_meter),
        Stepper::Burn { .. } => own_meter,
    };

    let mut next = batches.iter().cycle();
    let mut turn = || -> Result<Turn> {
        let Some(batch) = next.next() else { bail!("there is no batch") };
        let span = meter.span();
        let (taken, seconds, processor_seconds) = timed(living_threads_seconds, || {
            let taken = stepper.step(batch, &device)?;
            device.sync()?;
            anyhow::Ok(taken)
        });
        let Taken { counts, failures, micro_batches } = taken?;
        let _ = meter.live_bytes(); // a pool's peak is that of its readings
        Ok(Turn { seconds, processor_seconds, peak_bytes: span.peak_bytes(), counts, failures, micro_batches })
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
    drop(setup);
    Ok(ExitCode::SUCCESS)
}
