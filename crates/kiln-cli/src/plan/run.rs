//! All ways to take a step on one device, as a table; the models that are planned for.

use std::collections::BTreeMap;
use std::io::Write;

use crate::output::print_json;
use crate::pipelines::{NextToken, classify_for_planning, segment_for_planning};
use crate::usage::Usage;
use anyhow::{Result, bail};
use burn::tensor::Device;
use bytesize::ByteSize;
use kiln_checkpointing::Plan as Checkpoints;
use kiln_data::{ClassIds, Classes, ImageBatch, Samples, TextBatch, TileArea, TileBatch};
use kiln_memory::BackendProfile;
use kiln_models::{ClassifierConfig, GptConfig, UnetConfig, UnetEncoder};
use kiln_precision::{Policy, Precision};
use kiln_training::{Error, OptimizerConfig, Planner, StepPlan, Task, Trainer, TrainerBuilder};
use serde_json::json;

use super::divided;
use crate::cli::{Plan, PlanArgs};

/// Samples that a step is recorded with.
const SAMPLES: usize = 3;

pub(crate) fn run(command: Plan) -> Result<()> {
    match command {
        Plan::Classify(arguments) => {
            let (size, classes) = (arguments.image as usize, arguments.classes as usize);
            let config = match ClassifierConfig::named(&arguments.model, classes)? {
                ClassifierConfig::Vit(config) => ClassifierConfig::Vit(config.with_image(size)),
                config => config,
            };
            let config = config.with_lean(!arguments.plan.stock_layers);
            config.check_input([size; 2])?;
            let sample = ImageBatch {
                pixels: vec![0; SAMPLES * 3 * size * size].into(),
                shape: [SAMPLES, 3, size, size],
                labels: vec![0; SAMPLES],
                ids: vec![0; SAMPLES],
                mixed: None,
            };
            let name = format!("{}, {size} x {size}, {classes} classes", arguments.model);
            let builder = Trainer::try_builder(classify_for_planning(), |device| config.init(device));
            let optimizer = match config {
                ClassifierConfig::Vit(_) => OptimizerConfig::adamw(),
                _ => OptimizerConfig::sgd(),
            };
            table(&name, &arguments.plan, builder, &sample, optimizer)
        }
        Plan::Segment(arguments) => {
            let (size, classes) = (arguments.tile as usize, arguments.classes as usize);
            let config = UnetConfig::new(classes).with_encoder(UnetEncoder::named(&arguments.encoder)?);
            let config = config.with_lean(!arguments.plan.stock_layers);
            config.check_input([size; 2])?;
            let whole = TileArea { top: 0, left: 0, height: size, width: size };
            let sample = TileBatch {
                samples: Samples::U8(vec![0; SAMPLES * 3 * size * size]),
                shape: [SAMPLES, 3, size, size],
                masks: Some(ClassIds::U8(vec![0; SAMPLES * size * size])),
                classes: Some(Classes::new(classes)),
                valid: vec![whole; SAMPLES],
                ids: vec![0; SAMPLES],
            };
            let name = format!("U-Net on {}, tiles of {size} x {size}, {classes} classes", arguments.encoder);
            let builder = Trainer::try_builder(segment_for_planning(classes), |device| config.init(device));
            table(&name, &arguments.plan, builder, &sample, OptimizerConfig::adamw())
        }
        Plan::Gpt(arguments) => {
            let (context, vocab) = (arguments.context as usize, arguments.vocab as usize);
            if context == 0 || vocab == 0 {
                bail!(Usage(format!("--context is {context} and --vocab {vocab}, expected at least 1 of each")));
            }
            let config = GptConfig::named(&arguments.model, vocab, context)?.with_lean(!arguments.plan.stock_layers);
            let tokens = vec![0; SAMPLES * (context + 1)];
            let sample = TextBatch { tokens, shape: [SAMPLES, context + 1], ids: vec![0; SAMPLES] };
            let name = format!("{}, {context} tokens, vocabulary of {vocab}", arguments.model);
            let builder = Trainer::try_builder(NextToken::unmeasured(), |device| config.init(device));
            table(&name, &arguments.plan, builder, &sample, OptimizerConfig::adamw())
        }
    }
}

fn table<T: Task>(
    name: &str,
    arguments: &PlanArgs,
    builder: TrainerBuilder<'_, T>,
    sample: &T::Batch,
    optimizer: OptimizerConfig,
) -> Result<()> {
    let batch = arguments.batch as usize;
    let limit = match arguments.memory.parse::<ByteSize>() {
        Ok(ByteSize(bytes)) if bytes > 0 => bytes,
        _ => bail!(Usage(format!("memory is '{}', expected bytes, as in 300MiB or 24GiB", arguments.memory))),
    };
    let profile = match arguments.device.as_str() {
        "cuda" => BackendProfile::cuda(),
        "flex" => crate::profile::of(&Device::flex(), "flex")?,
        other => bail!(Usage(format!("device is '{other}', expected cuda or flex"))),
    };
    let optimizer = match arguments.optimizer.as_deref() {
        None => optimizer,
        Some(name) => OptimizerConfig::named(name).map_err(|error| Usage(error.to_string()))?,
    };
    let precisions = match &arguments.precision {
        None => Precision::ALL.to_vec(),
        Some(text) => vec![text.parse().map_err(|e: kiln_precision::Error| Usage(e.to_string()))?],
    };
    let builder = builder
        .with_optimizer(move |model| optimizer.groups(model))
        .with_clip_norm(1.0)
        .with_precision(Policy::new(precisions[0]).keep_norms());
    let builder = precisions[1..].iter().fold(builder, |builder, precision| builder.allow_precision(*precision));
    let builder = match arguments.optimizer {
        Some(_) => builder,
        None => {
            let host = format!("{}, host", optimizer.name());
            let builder = builder.allow_offloaded_optimizer(host, move |model| optimizer.offloaded_groups(model));
            match optimizer.in_8bit() {
                Some(small) => builder.allow_optimizer(small.name(), move |model| small.groups(model)),
                None => builder,
            }
        }
    };
    let layout = divided::layout(arguments)?;
    // A replica has its part of the batch.
    let replicas = layout.as_ref().map_or(1, |layout| layout.replicas);
    let planner = builder.planner(&profile, sample, batch / replicas)?;
    if let Some(layout) = layout {
        return divided::print(name, arguments, &planner, &layout, limit);
    }
    let mut all: Vec<StepPlan> = vec![];
    for planner in [&planner].into_iter().chain(planner.alternatives()) {
        for precision in planner.precisions() {
            all.extend(planner.candidates(precision, limit)?);
            // Of other optimizers, what the planner would take is enough to compare.
            if planner.optimizer().is_none() || arguments.all {
                all.extend(uniform(planner, precision, limit)?);
            }
        }
    }
    // State in fewer bits changes the numbers: it is for steps that do not fit otherwise.
    let in_f32 = |plan: &&StepPlan| plan.optimizer.as_deref().is_none_or(|name| name.ends_with("host"));
    let exact: Vec<StepPlan> = all.iter().filter(in_f32).cloned().collect();
    let best = StepPlan::fastest(&exact).or_else(|| StepPlan::fastest(&all)).cloned();
    let quickest = all.iter().map(|plan| plan.seconds).fold(f64::INFINITY, f64::min);
    let shown = if arguments.all { all } else { brief(all, batch) };
    if arguments.json {
        let rows: Vec<_> = shown.iter().map(|plan| row(plan, quickest)).collect();
        let best = best.as_ref().map(|plan| row(plan, quickest));
        let device = &profile.name;
        return print_json(&json!({
            "model": name, "batch": batch, "limit_bytes": limit, "device": device, "rows": rows, "recommended": best,
        }));
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{name}: batches of {batch} within {} on {}\n", ByteSize(limit), profile.name)?;
    writeln!(out, "  precision  optimizer    micro-batch         peak   time  fits  checkpointing")?;
    for plan in &shown {
        let marked = best.as_ref() == Some(plan);
        writeln!(
            out,
            "{} {:<9}  {:<11}  {:>11}  {:>11}  {:>5.2}  {:<4}  {}",
            if marked { '>' } else { ' ' },
            plan.precision.to_string(),
            plan.optimizer.as_deref().unwrap_or(optimizer.name()),
            plan.micro_batch,
            ByteSize(plan.peak_bytes).to_string(),
            plan.seconds / quickest,
            if plan.fits { "yes" } else { "no" },
            plan.checkpoints,
        )?;
    }
    match best {
        Some(plan) => writeln!(
            out,
            "\n> --precision {} --micro-batch {} --checkpointing '{}'{}",
            plan.precision,
            plan.micro_batch,
            plan.checkpoints,
            match plan.optimizer.as_deref() {
                None => String::new(),
                Some(name) if name.ends_with("host") => " --optimizer-offload".to_owned(),
                Some(name) => format!(" --optimizer {name}"),
            },
        )?,
        None => writeln!(out, "\nnothing fits; a smaller model, image or context would help most")?,
    }
    Ok(())
}

/// Whole batches, halves, quarters and so on, with nothing, with all blocks and with segments in between recomputed, and offloaded.
fn uniform(planner: &Planner, precision: Precision, limit: u64) -> Result<Vec<StepPlan>, Error> {
    let blocks = planner.blocks();
    let mut plans = vec![Checkpoints::none(blocks)];
    let mut length = blocks.div_ceil(2);
    while length > 0 {
        plans.extend(Checkpoints::every(blocks, length).ok().filter(|plan| plan.recomputed() > 0));
        length = if length > 4 { length.div_ceil(2) } else { length - 1 };
    }
    plans.push(Checkpoints::offload(blocks, 1)?);
    plans.dedup();
    let sizes = (0..).map(|half| planner.batch() >> half).take_while(|size| *size > 0);
    let mut found = vec![];
    for size in sizes {
        for plan in &plans {
            found.push(planner.evaluate(precision, plan, size, limit)?);
        }
    }
    Ok(found)
}

fn row(plan: &StepPlan, quickest: f64) -> serde_json::Value {
    json!({
        "precision": plan.precision, "optimizer": plan.optimizer, "checkpointing": plan.checkpoints.to_string(), "micro_batch": plan.micro_batch,
        "peak_bytes": plan.peak_bytes, "seconds": plan.seconds, "relative_time": plan.seconds / quickest,
        "fits": plan.fits,
    })
}

/// Of each precision and plan the whole batch and the largest micro-batch that fits.
fn brief(plans: Vec<StepPlan>, batch: usize) -> Vec<StepPlan> {
    let mut largest: BTreeMap<String, usize> = BTreeMap::new();
    let key = |plan: &StepPlan| format!("{} {:?} {}", plan.precision, plan.optimizer, plan.checkpoints);
    for plan in plans.iter().filter(|plan| plan.fits) {
        let size = largest.entry(key(plan)).or_default();
        *size = plan.micro_batch.max(*size);
    }
    let mut shown: Vec<StepPlan> = vec![];
    for plan in plans {
        if (plan.micro_batch == batch || largest.get(&key(&plan)) == Some(&plan.micro_batch)) && !shown.contains(&plan)
        {
            shown.push(plan);
        }
    }
    shown
}
