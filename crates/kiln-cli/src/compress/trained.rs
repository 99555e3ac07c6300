//! `compress prune`, `shrink` and `distill`: models that are made smaller and trained.

use std::process::ExitCode;

use crate::pipelines::{CompressionSettings, Findings, PruneSettings, Run, TeacherSettings};
use crate::usage::Usage;
use anyhow::{Result, anyhow, bail};
use burn::module::Module;
use burn::tensor::Device;
use bytesize::ByteSize;
use kiln_compression::{ChannelPruning, Channels, Gradual, Scope, Shapes, reshape_like, shrink as shrunk, sparsity};
use kiln_data::printable;
use kiln_training::{Recompute, evaluate};

use super::family::{Family, check_data, model_of, source, with_settings};
use super::page::Page;
use super::write::written;
use crate::cli::{CompressArgs, CompressDistill, CompressPrune, CompressShrink, RunArgs, StepArgs};
use crate::train::drive;
use crate::train::overlay::absolute;

/// Default numbers of passes over the data: for a pruned model, and for one that lost channels.
const EPOCHS: u64 = 6;
const SHRUNK_EPOCHS: u64 = 10;
/// Shares of the run's highest learning rate.
const RATE: f64 = 0.1;
const SHRUNK_RATE: f64 = 0.5;
/// Updates of the masks while sparsity grows, and the share of the steps that it grows in.
const UPDATES: usize = 40;
const GROWS: f64 = 0.6;

/// The model of a run before it is made smaller.
pub(super) struct Before<S: Family> {
    /// The settings of the run.
    pub(super) source: S,
    /// The settings of the smaller model.
    pub(super) settings: S,
    pub(super) device: Device,
    pub(super) model: S::Model,
    pub(super) metric: f64,
    /// Batches of an epoch.
    batches: usize,
}

/// A run that was opened, and its task and data.
pub(super) type Opened<S> = (Before<S>, Run<<S as Family>::Task, S>);

/// Opens a run, and measures its model.
pub(super) fn before<S: Family>(settings: S, arguments: &CompressArgs) -> Result<Opened<S>> {
    let (run, device) = settings.clone().into_run()?;
    check_data(&run, &arguments.run)?;
    let model = model_of(&settings, arguments, true, &device)?;
    let metrics = evaluate(&run.task, &model, &run.setup.data.test, &device)?;
    let metric = metric_of::<S>(&metrics)?;
    tracing::info!("{} of '{}': {metric:.4}", S::METRIC, printable(&arguments.run));
    let batches = S::batches(&run);
    // The attachments of the run are merged into its model.
    let source = settings.clone();
    let mut settings = settings;
    let shapes = settings.compression().and_then(|compression| compression.shapes.clone());
    *settings.own_compression() = CompressionSettings { shapes, ..CompressionSettings::default() };
    Ok((Before { source, settings, device, model, metric, batches }, run))
}

pub(super) fn metric_of<S: Family>(metrics: &[(&'static str, f64)]) -> Result<f64> {
    let name = S::METRIC;
    metrics.iter().find(|(own, _)| *own == name).map(|(_, value)| *value).ok_or_else(|| anyhow!("there is no {name}"))
}

impl<S: Family> Before<S> {
    /// Sets how long the model is trained, and its learning rate.
    pub(super) fn set_length(&mut self, arguments: &CompressArgs, default_epochs: u64, rate: f64) -> Result<()> {
        let peak = &mut self.settings.schedule_mut().peak;
        *peak = arguments.learning_rate.unwrap_or(*peak * rate);
        let memory = arguments.memory.clone().map(|text| text.try_into().map_err(|text: String| Usage(text)));
        let run = self.settings.run_mut();
        run.memory = memory.transpose()?;
        run.epochs = arguments.epochs.map_or(default_epochs, u64::from);
        run.max_steps = match (arguments.max_steps, arguments.epochs) {
            (Some(steps), _) => Some(u64::from(steps)),
            (None, Some(_)) => None,
            // The run counts its length in steps.
            (None, None) => run.max_steps.map(|steps| (steps / 2).max(1)),
        };
        Ok(())
    }

    /// Steps that the model is trained on.
    pub(super) fn steps(&self) -> usize {
        let run = self.settings.run();
        let epochs = run.epochs.saturating_mul(self.batches as u64);
        usize::try_from(run.max_steps.unwrap_or(u64::MAX).min(epochs)).unwrap_or(usize::MAX)
    }

    /// Trains the settings' model, from `start` if there is one.
    pub(super) fn train(
        self,
        start: Option<S::Model>,
        arguments: &CompressArgs,
        findings: impl Fn(&S::Model, &Device, usize) -> Result<Findings> + 'static,
    ) -> Result<ExitCode> {
        let (mut run, device) = self.settings.into_run()?;
        if let Some(start) = start {
            let record = start.into_record();
            let init = run.init;
            run.init = Box::new(move |device| {
                let model = init(device)?;
                // The device that records steps gets no weights.
                match device.clone().inner() == Device::capture() {
                    true => Ok(model),
                    false => model
                        .try_load_record(record.clone())
                        .map_err(|error| crate::pipelines::InitError::Weights(error.to_string())),
                }
            });
        }
        run.findings = Some(Box::new(findings));
        let step = StepArgs { json: arguments.json, ..StepArgs::default() };
        let own = RunArgs { step, out: arguments.out.clone(), ..RunArgs::default() };
        drive(run, &device, &own, None)
    }
}

/// Bytes of parameters and running statistics in f32.
pub(super) fn dense_bytes(model: &impl Module) -> u64 {
    4 * model.num_params() as u64
}

fn shown(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

pub(super) fn prune(arguments: &CompressPrune) -> Result<ExitCode> {
    with_settings!(source(&arguments.compress)?, settings => prune_run(*settings, arguments))
}

fn prune_run<S: Family>(settings: S, arguments: &CompressPrune) -> Result<ExitCode> {
    let compress = &arguments.compress;
    let (mut before, _) = before(settings, compress)?;
    before.set_length(compress, EPOCHS, RATE)?;
    let steps = before.steps();
    let to_step = ((steps as f64 * GROWS) as usize).max(1);
    let every = (to_step / UPDATES).max(1);
    let schedule = Gradual { from_step: 0, to_step, every, initial: 0.0, final_sparsity: arguments.sparsity };
    let scope = if arguments.per_layer { Scope::Layer } else { Scope::Global };
    let pattern = arguments.pattern.as_deref().map(pattern).transpose()?;
    let settings = PruneSettings { schedule, scope, pattern, skip: arguments.skip.clone() };
    before.settings.own_compression().prune = Some(settings);
    let (was, dense) = (before.metric, dense_bytes(&before.model));
    let start = before.model.clone();
    before.train(Some(start), compress, move |model, _, _| {
        let sparsity = sparsity(model);
        // Each weight of a pruned layer has a bit that says whether it is kept.
        let pruned: usize = sparsity.layers.iter().map(|layer| layer.pruned).sum();
        let bits: usize = sparsity.layers.iter().map(|layer| layer.total).sum();
        let bytes = dense - 4 * pruned as u64 + (bits as u64).div_ceil(8);
        let page = Page {
            title: "Pruned weights".into(),
            figures: vec![
                ["sparsity".into(), "0".into(), format!("{:.4}", sparsity.total())],
                ["bytes, without zeros".into(), shown(dense), shown(bytes)],
            ],
            facts: vec![(format!("{} before", S::METRIC), format!("{was:.4}"))],
            columns: vec!["layer", "weights", "left out", "share"],
            rows: sparsity
                .layers
                .iter()
                .map(|layer| {
                    let share = format!("{:.3}", layer.ratio());
                    vec![layer.path.clone(), layer.total.to_string(), layer.pruned.to_string(), share]
                })
                .collect(),
        };
        Ok(Findings {
            figures: vec![
                (format!("{}_before", S::METRIC), was),
                ("sparsity".into(), sparsity.total()),
                ("bytes_before".into(), dense as f64),
                ("bytes".into(), bytes as f64),
            ],
            files: vec![written(page)],
            ..Findings::default()
        })
    })
}

/// `2:4` as its two numbers.
fn pattern(text: &str) -> Result<[usize; 2]> {
    let numbers = text.split_once(':').and_then(|(n, m)| Some([n.parse().ok()?, m.parse().ok()?]));
    match numbers {
        Some([n, m]) if 0 < n && n < m => Ok([n, m]),
        _ => bail!(Usage(format!("--pattern is '{text}', expected N:M with N below M, as in 2:4"))),
    }
}

pub(super) fn shrink(arguments: &CompressShrink) -> Result<ExitCode> {
    with_settings!(source(&arguments.compress)?, settings => shrink_run(*settings, arguments))
}

fn shrink_run<S: Family>(settings: S, arguments: &CompressShrink) -> Result<ExitCode> {
    let compress = &arguments.compress;
    let (mut before, _) = before(settings, compress)?;
    before.set_length(compress, SHRUNK_EPOCHS, SHRUNK_RATE)?;
    let settings = before.settings.clone();
    let shapes = Shapes::of(&before.model);
    let channels = Channels::of(
        |device| {
            // These settings have made a model above.
            let plain = settings.plain(false, device).unwrap_or_else(|error| panic!("{error}"));
            reshape_like(plain, &shapes).unwrap_or_else(|error| panic!("{error}"))
        },
        |model: &S::Model, device| settings.forward_once(model, device),
    )?;
    let round_to = arguments.round_to as usize;
    let how = ChannelPruning::MultiplyAdds { left: arguments.multiply_adds, round_to };
    let kept = channels.choose(&before.model, &how).map_err(|error| Usage(error.to_string()))?;
    let [was_macs, macs] = [channels.multiply_adds(&channels.all()), channels.multiply_adds(&kept)];
    let dense = dense_bytes(&before.model);
    let small = shrunk(before.model.clone(), &kept)?;
    let bytes = dense_bytes(&small);
    tracing::info!("{was_macs} multiply-adds become {macs}, {} become {}", shown(dense), shown(bytes));
    let (old, new) = (Shapes::of(&before.model), Shapes::of(&small));
    let rows: Vec<Vec<String>> = old
        .0
        .iter()
        .filter(|(path, shape)| shape.len() > 1 && new.0.get(*path) != Some(shape))
        .map(|(path, shape)| vec![path.clone(), format!("{shape:?}"), format!("{:?}", new.0[path])])
        .collect();
    before.settings.own_compression().shapes = Some(new);
    let was = before.metric;
    before.train(Some(small), compress, move |_, _, _| {
        let page = Page {
            title: "Removed channels".into(),
            figures: vec![
                ["multiply-adds".into(), was_macs.to_string(), macs.to_string()],
                ["bytes".into(), shown(dense), shown(bytes)],
            ],
            facts: vec![(format!("{} before", S::METRIC), format!("{was:.4}"))],
            columns: vec!["weight", "before", "after"],
            rows: rows.clone(),
        };
        Ok(Findings {
            figures: vec![
                (format!("{}_before", S::METRIC), was),
                ("multiply_adds_before".into(), was_macs as f64),
                ("multiply_adds".into(), macs as f64),
                ("bytes_before".into(), dense as f64),
                ("bytes".into(), bytes as f64),
            ],
            files: vec![written(page)],
            ..Findings::default()
        })
    })
}

pub(super) fn distill(arguments: &CompressDistill) -> Result<ExitCode> {
    with_settings!(source(&arguments.compress)?, settings => distill_run(*settings, arguments))
}

fn distill_run<S: Family>(settings: S, arguments: &CompressDistill) -> Result<ExitCode> {
    let compress = &arguments.compress;
    let (mut before, _) = before(settings, compress)?;
    let (epochs, steps) = (before.settings.run().epochs, before.settings.run().max_steps);
    // A student is trained from the beginning, as its teacher was.
    before.set_length(compress, epochs, 1.0)?;
    if (compress.epochs, compress.max_steps) == (None, None) {
        before.settings.run_mut().max_steps = steps;
    }
    // A plan is for the blocks of its own model.
    before.settings.run_mut().checkpointing = Recompute::None;
    before.settings.make_student(arguments.model.as_deref(), arguments.width)?;
    let checkpoint = absolute(&compress.run)?.into();
    let teacher = TeacherSettings { checkpoint, temperature: arguments.temperature, share: arguments.share };
    *before.settings.own_compression() =
        CompressionSettings { teacher: Some(teacher), ..CompressionSettings::default() };
    let (was, dense) = (before.metric, dense_bytes(&before.model));
    before.train(None, compress, move |model, _, _| {
        let bytes = dense_bytes(model);
        let page = Page {
            title: "A student and its teacher".into(),
            figures: vec![["bytes".into(), shown(dense), shown(bytes)]],
            facts: vec![(format!("{} of the teacher", S::METRIC), format!("{was:.4}"))],
            columns: vec![],
            rows: vec![],
        };
        Ok(Findings {
            figures: vec![
                (format!("{}_before", S::METRIC), was),
                ("bytes_before".into(), dense as f64),
                ("bytes".into(), bytes as f64),
            ],
            files: vec![written(page)],
            ..Findings::default()
        })
    })
}
