//! `kiln plan`: predicted memory and time of a training step, for devices that need not be here.

mod bytes;
mod candidates;
mod command;
mod divided;
mod table;

use std::io::Write;

use anyhow::{Result, bail};
use burn::tensor::Device;
use bytesize::ByteSize;
use kiln_data::{ClassIds, Classes, ImageBatch, Samples, TextBatch, TileArea, TileBatch, TokenBatch};
use kiln_models::{ClassifierConfig, DecoderConfig, UnetConfig, UnetEncoder};
use kiln_precision::Precision;
use kiln_report::counted;
use kiln_training::{Exact, OptimizerConfig, StepPlan, StoreConfig, Task, Trainer, TrainerBuilder};
use serde_json::json;

use crate::cli::{Plan, PlanArgs};
use crate::device;
use crate::output::print_json;
use crate::pipelines::classify::classify_for_planning;
use crate::pipelines::segment::segment_for_planning;
use crate::pipelines::{BaseValues, CompressionSettings, NextToken, RunSettings, next_token};
use crate::usage::Usage;
use table::{Facts, legend, table};

pub(crate) use divided::{devices, heading};

/// The most samples that a step is recorded with.
const SAMPLES: usize = 5;
/// Images with fewer pixels per side are small.
const SMALL: usize = 64;
/// The vocabulary size of texts without a tokenizer.
const BYTES: usize = 256;
/// The vocabulary size of GPT-2's tokenizer, and tokens of a sequence, if nothing is said.
const GPT2_VOCABULARY: usize = 50_257;
const CONTEXT: usize = 1024;

pub(crate) fn run(command: Plan) -> Result<()> {
    match command {
        Plan::Classify(arguments) => {
            let (size, classes) = (arguments.image_size as usize, arguments.classes as usize);
            let config = match ClassifierConfig::named(&arguments.model, classes)? {
                ClassifierConfig::Vit(config) => ClassifierConfig::Vit(config.with_image(size)),
                config => config,
            };
            let config = config.with_lean(!arguments.plan.stock_layers);
            config.check_input([size; 2])?;
            // `train` gives networks for small images another stem.
            let stem = size < SMALL && !matches!(config, ClassifierConfig::Vit(_));
            let sample = ImageBatch {
                pixels: vec![0; SAMPLES * 3 * size * size].into(),
                shape: [SAMPLES, 3, size, size],
                labels: vec![0; SAMPLES],
                ids: vec![0; SAMPLES],
                mixed: None,
            };
            let name = format!("{}, {size} x {size}, {}", arguments.model, counted(classes, "class"));
            let builder = Trainer::try_builder(classify_for_planning(), |device| config.init(device));
            let optimizer = match config {
                ClassifierConfig::Vit(_) => OptimizerConfig::adamw(),
                _ => OptimizerConfig::sgd(),
            };
            let mut what = what("classify", &arguments.plan);
            what.extend(["--model".into(), arguments.model, "--image-size".into(), size.to_string()]);
            if stem {
                what.extend(["--stem".into(), "imagenet".into()]);
            }
            plan(Subject { name, what, optimizer }, &arguments.plan, builder, &sample)
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
            let name =
                format!("U-Net on {}, tiles of {size} x {size}, {}", arguments.encoder, counted(classes, "class"));
            let builder = Trainer::try_builder(segment_for_planning(classes), |device| config.init(device));
            let mut what = what("segment", &arguments.plan);
            what.extend(["--encoder".into(), arguments.encoder, "--tile".into(), size.to_string()]);
            plan(Subject { name, what, optimizer: OptimizerConfig::adamw() }, &arguments.plan, builder, &sample)
        }
        Plan::Gpt(arguments) => {
            let (context, vocab) = (arguments.context.map(|tokens| tokens as usize), arguments.vocab);
            let folder = next_token::folder(&arguments.model);
            let config = match (folder, vocab) {
                (Some(_), Some(vocab)) => {
                    bail!(Usage(format!("--vocab is {vocab}, expected none: the model of a folder has its own")))
                }
                (Some(folder), None) => next_token::of_folder(folder, context, CONTEXT)?,
                (None, _) => {
                    let (vocab, context) =
                        (vocab.map_or(GPT2_VOCABULARY, |vocab| vocab as usize), context.unwrap_or(CONTEXT));
                    DecoderConfig::Gpt(next_token::named(&arguments.model, vocab, context)?)
                }
            };
            let mut config = config.with_lean(!arguments.plan.stock_layers);
            arguments.sizes.apply(&mut config, folder.is_some())?;
            let (context, vocab) = (config.context(), config.vocab());
            let tokens = vec![0; SAMPLES * (context + 1)];
            let sample = TextBatch { tokens, shape: [SAMPLES, context + 1], ids: vec![0; SAMPLES] };
            let sample = TokenBatch::Windows(sample);
            let adapters = arguments.adapters.lora.map_or(String::new(), |rank| format!(", adapters of rank {rank}"));
            let base = arguments.adapters.base_bits.map_or(String::new(), |bits| format!(", {bits}-bit base"));
            let name =
                format!("{}, {}, vocabulary of {vocab}{adapters}{base}", arguments.model, counted(context, "token"));
            let builder = Trainer::try_builder(NextToken::unmeasured(), |device| config.init(device));
            let builder = match arguments.adapters.settings(&config) {
                Some(lora) => {
                    let compression = CompressionSettings { lora: Some(lora), ..CompressionSettings::default() };
                    compression.into_builder(builder, BaseValues::Checkpoint)
                }
                None => builder,
            };
            let mut what = what(if folder.is_some() { "llm" } else { "gpt" }, &arguments.plan);
            what.extend(["--model".into(), arguments.model.clone(), "--context".into(), context.to_string()]);
            what.extend(arguments.sizes.words());
            what.extend(arguments.adapters.words());
            if vocab != BYTES && folder.is_none() {
                what.extend(["--tokenizer".into(), "DIR".into()]);
            }
            plan(Subject { name, what, optimizer: OptimizerConfig::adamw() }, &arguments.plan, builder, &sample)
        }
    }
}

/// The subject of a plan: a model and its training.
struct Subject {
    name: String,
    /// The words of `train` that name the pipeline, its data and its model.
    what: Vec<String>,
    /// The recipe's optimizer.
    optimizer: OptimizerConfig,
}

/// The command of `train`, and the data.
fn what(pipeline: &str, arguments: &PlanArgs) -> Vec<String> {
    let data = arguments.data.as_ref().map_or("PATH".into(), |data| data.display().to_string());
    ["train".into(), pipeline.into(), "--data".into(), data].into()
}

fn plan<T: Task>(
    subject: Subject,
    arguments: &PlanArgs,
    builder: TrainerBuilder<'_, T>,
    sample: &T::Batch,
) -> Result<()> {
    let Subject { name, what, optimizer } = subject;
    let batch = arguments.batch_size as usize;
    let limit = arguments.memory.bytes;
    let (profile, half, has_bytes) = match device::gpu(&arguments.device) {
        Some((runtime, _)) => (runtime.profile(), runtime.half, runtime.has_bytes),
        None => (crate::profile::of(&Device::flex(), "flex")?, Precision::BF16, true),
    };
    let optimizer = match arguments.optimizer {
        None => optimizer,
        Some(name) => OptimizerConfig::named(name).map_err(|error| Usage(error.to_string()))?,
    };
    let stored = arguments.parameters.filter(|stored| *stored != Precision::F32);
    let precisions = match (arguments.precision, stored) {
        // A step in f16 takes the memory and the time of one in bf16, and needs a loss scale.
        (None, None) if !arguments.exact => vec![Precision::F32, half],
        (None, None) => vec![Precision::F32],
        (Some(precision), _) | (None, Some(precision)) => vec![precision],
    };
    let parameters = arguments.parameters.unwrap_or_default();
    let run = RunSettings { precision: precisions[0], parameters, ..RunSettings::new(1, batch) };
    run.check_precision()?;
    let builder = builder
        .with_optimizer(move |model| optimizer.groups(model))
        .with_clip_norm(1.0)
        .with(|settings| {
            // That of a run, which a plan does not make.
            let store = arguments.store.clone().unwrap_or_else(|| "store".into());
            settings.memory.store = Some(StoreConfig::Directory(store));
        })
        .with_precision(run.policy());
    let builder = precisions[1..].iter().fold(builder, |builder, precision| builder.with_allowed_precision(*precision));
    let builder = builder.with_allowed_optimizer(kiln_training::PlannedOptimizer::OwnOnHost, move |model| {
        optimizer.offloaded_groups(model)
    });
    let layout = divided::layout(arguments)?;
    // As a run on replicas adds up gradients.
    let (replicas, in_stages) = layout.as_ref().map_or((1, false), |layout| (layout.replicas, layout.stages() > 1));
    let exact = match (arguments.exact, replicas) {
        (true, 1) => Exact::Always,
        (true, _) if !in_stages => Exact::Always,
        (false, 1) => Exact::WherePossible,
        _ => Exact::Never,
    };
    let builder = builder.with(|settings| {
        settings.memory.exact = exact;
        settings.memory.store = settings.memory.store.take().filter(|_| layout.is_none());
    });
    let builder = match (&arguments.optimizer, optimizer.in_8bit()) {
        (None, Some(small)) if !arguments.exact && has_bytes => {
            builder.with_allowed_optimizer(small.name(), move |model| small.groups(model))
        }
        _ => builder,
    };
    // A replica has its own part of the batch.
    let replicas = layout.as_ref().map_or(1, |layout| layout.replicas);
    let planner = builder.planner(&profile, sample, batch / replicas)?;
    if let Some(layout) = layout {
        return divided::print((name.as_str(), what.as_slice()), arguments, &planner, &layout, limit);
    }
    let all = candidates::all(&planner, limit, arguments.all)?;
    let chosen = candidates::chosen(&all);
    let train = chosen.as_ref().map(|plan| command::words(&what, arguments, plan));
    let quickest = all.iter().map(|plan| plan.seconds).fold(f64::INFINITY, f64::min);
    let in_memory = match (arguments.bytes, chosen.as_ref().or(candidates::nearest(&all).first())) {
        (true, Some(plan)) => Some(bytes::groups(&planner.predict(plan)?)),
        _ => None,
    };
    if arguments.json {
        let row = |plan: &StepPlan| row(plan, &optimizer, quickest);
        let recommended = chosen.as_ref().map(row);
        let shown = if arguments.all { all } else { candidates::brief(all, batch) };
        return print_json(&json!({
            "model": name, "batch": batch, "limit_bytes": limit, "device": profile.name,
            "rows": shown.iter().map(row).collect::<Vec<_>>(), "recommended": recommended, "command": train,
            "in_memory": in_memory.as_deref().map(bytes::json),
        }));
    }
    let shown = match &chosen {
        _ if arguments.all => all,
        Some(chosen) => candidates::best(&all, chosen),
        None => candidates::nearest(&all),
    };
    let mut out = std::io::stdout().lock();
    let facts = Facts { optimizer: optimizer.name(), quickest, limit };
    writeln!(out, "{name}\nbatches of {batch} within {} on {}\n", ByteSize(limit), profile.name)?;
    writeln!(out, "{}\n{}", table(&shown, chosen.as_ref(), &facts), legend(&shown, chosen.is_some()))?;
    if let Some(groups) = &in_memory {
        writeln!(out, "{}\n", bytes::text(groups))?;
    }
    match train {
        Some(train) => {
            writeln!(out, "{}", command::shown(&train))?;
            for note in chosen.iter().flat_map(|plan| command::notes(arguments, plan)) {
                writeln!(out, "\n{note}")?;
            }
        }
        None => writeln!(
            out,
            "Nothing fits: lacks is what the way needs beyond the limit. A smaller model,\n\
             image or context would help most."
        )?,
    }
    Ok(())
}

fn row(plan: &StepPlan, own: &OptimizerConfig, quickest: f64) -> serde_json::Value {
    json!({
        "precision": plan.precision, "optimizer": plan.optimizer.name(own.name()), "optimizer_on_host": plan.optimizer.is_on_host(),
        "checkpointing": plan.checkpoints.to_string(), "micro_batch": plan.micro_batch,
        "peak_bytes": plan.peak_bytes, "seconds": plan.seconds, "relative_time": plan.seconds / quickest,
        "same_bits": plan.same_bits, "fits": plan.fits,
    })
}
