//! `cargo xtask plan`: what a training step would take, for a device that need not be here.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_checkpointing::Plan as Checkpoints;
use kiln_data::{ImageBatch, Normalize, TextBatch};
use kiln_memory::BackendProfile;
use kiln_models::{GptConfig, ResNetConfig};
use kiln_precision::{Policy, Precision};
use kiln_training::{OptimizerConfig, ScheduleConfig, StepSettings};
use serde_json::json;

use crate::cli::{Plan, PlanArgs};
use crate::train::budget::{Named, Way, choose, plans, ways};
use crate::train::checkpointing::{Checkpointed, parse_bytes};
use crate::train::drive::{Init, print_json};
use crate::train::gpt::Predict;
use crate::train::recorded::Recorded;
use crate::train::resnet::Classify;
use crate::usage::Usage;

const MIB: f64 = (1 << 20) as f64;

pub(crate) fn run(command: Plan) -> Result<()> {
    match command {
        Plan::Resnet(arguments) => {
            let (size, classes) = (arguments.image as usize, arguments.classes as usize);
            let config = ResNetConfig::named(&arguments.model, classes)?;
            let task = Classify { normalize: Normalize::for_channels(3), label_smoothing: 0.1, plans: vec![] };
            let sample = ImageBatch {
                pixels: vec![0; 3 * size * size].into(),
                shape: [1, 3, size, size],
                labels: vec![0],
                ids: vec![0],
            };
            let name = format!("{}, {size} x {size}, {classes} classes", arguments.model);
            table(&name, &arguments.plan, &task, &sample, OptimizerConfig::sgd(), &|device| config.init(device))
        }
        Plan::Gpt(arguments) => {
            let (context, vocab) = (arguments.context as usize, arguments.vocab as usize);
            let config = GptConfig::named(&arguments.model, vocab, context)?;
            let sample = TextBatch { tokens: vec![0; context + 1], shape: [1, context + 1], ids: vec![0] };
            let name = format!("{}, {context} tokens, vocabulary of {vocab}", arguments.model);
            let init: Init<'_, _> = &|device| config.init(device);
            table(&name, &arguments.plan, &Predict::unmeasured(), &sample, OptimizerConfig::adamw(), init)
        }
    }
}

fn table<T: Checkpointed>(
    name: &str,
    arguments: &PlanArgs,
    task: &T,
    sample: &T::Batch,
    optimizer: OptimizerConfig,
    init: Init<'_, T::Model>,
) -> Result<()>
where
    T::Model: 'static,
{
    let batch = arguments.batch as usize;
    if batch == 0 {
        bail!(Usage("batch is 0, expected at least 1".into()));
    }
    let Some(limit) = parse_bytes(&arguments.memory) else {
        bail!(Usage(format!("memory is '{}', expected bytes, as in 300MiB or 24GiB", arguments.memory)));
    };
    let profile = match arguments.device.as_str() {
        "cuda" => BackendProfile::cuda(),
        "flex" => crate::profile::of(&Device::flex(), "flex")?,
        other => bail!(Usage(format!("device is '{other}', expected cuda or flex"))),
    };
    let optimizer = match arguments.optimizer.as_deref() {
        None => optimizer,
        Some("sgd") => OptimizerConfig::sgd(),
        Some("adamw") => OptimizerConfig::adamw(),
        Some(other) => bail!(Usage(format!("optimizer is '{other}', expected sgd or adamw"))),
    };
    let precisions = match &arguments.precision {
        None => Precision::ALL.to_vec(),
        Some(text) => vec![text.parse().map_err(|e: kiln_precision::Error| Usage(e.to_string()))?],
    };
    let schedule = ScheduleConfig { peak: 0.1, warmup: 0.0, floor: 0.0 };
    let samples = task.repeated(sample, 3);
    let mut all: Vec<Way> = vec![];
    for precision in precisions {
        let mut settings = StepSettings::new(optimizer, schedule, 1, Device::flex().autodiff());
        settings.max_norm = Some(1.0);
        settings.policy = Policy::new(precision).keep_norms();
        let recorded = Recorded::of(task, &settings, &samples, init)?;
        let mut plans = plans(recorded.blocks());
        plans.push(Checkpoints::offload(recorded.blocks(), 1)?);
        all.extend(ways(&recorded, precision, &plans, batch, limit, &profile)?);
    }
    let best = choose(&all).cloned();
    let fastest = all.iter().map(|way| way.seconds).fold(f64::INFINITY, f64::min);
    let shown = if arguments.all { all } else { brief(all, batch) };
    if arguments.json {
        let rows: Vec<_> = shown.iter().map(|way| with_time(way, fastest)).collect();
        let best = best.as_ref().map(|way| with_time(way, fastest));
        let device = &profile.name;
        return print_json(&json!({
            "model": name, "batch": batch, "limit_bytes": limit, "device": device, "rows": rows, "recommended": best,
        }));
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{name}: batches of {batch} within {:.0} MiB on {}\n", limit as f64 / MIB, profile.name)?;
    writeln!(out, "  precision  checkpointing  micro-batch    peak, MiB   time  fits")?;
    for way in &shown {
        let marked = best.as_ref().is_some_and(|best| same(best, way));
        writeln!(
            out,
            "{} {:<9}  {:<13}  {:>11}  {:>11.1}  {:>5.2}  {}",
            if marked { '>' } else { ' ' },
            way.precision.to_string(),
            Named(&way.plan).to_string(),
            way.micro_batch,
            way.peak_bytes as f64 / MIB,
            way.seconds / fastest,
            if way.fits { "yes" } else { "no" }
        )?;
    }
    match best {
        Some(way) => writeln!(
            out,
            "\n> --precision {} --checkpointing {} --micro-batch {}",
            way.precision,
            Named(&way.plan),
            way.micro_batch
        )?,
        None => writeln!(out, "\nnothing fits; what would help most is a smaller model, image or context")?,
    }
    Ok(())
}

fn with_time(way: &Way, fastest: f64) -> serde_json::Value {
    let mut row = json!(way);
    row["relative_time"] = json!(way.seconds / fastest);
    row
}

fn same(a: &Way, b: &Way) -> bool {
    (a.precision, &a.plan, a.micro_batch) == (b.precision, &b.plan, b.micro_batch)
}

/// Of each precision and plan the whole batch, and the largest micro-batch that fits.
fn brief(ways: Vec<Way>, batch: usize) -> Vec<Way> {
    let mut largest: BTreeMap<String, usize> = BTreeMap::new();
    let key = |way: &Way| format!("{} {}", way.precision, Named(&way.plan));
    for way in ways.iter().filter(|way| way.fits) {
        let size = largest.entry(key(way)).or_default();
        *size = way.micro_batch.max(*size);
    }
    ways.into_iter()
        .filter(|way| way.micro_batch == batch || largest.get(&key(way)) == Some(&way.micro_batch))
        .collect()
}
