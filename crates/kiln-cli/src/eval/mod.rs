//! `kiln eval`: metrics of a checkpoint on held-out data.

mod checkpoint;
mod segment;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use crate::device;
use crate::output::print_json;
use crate::pipelines::{
    ClassifySettings, GptSettings, Kind, PipelineSettings, check_against, classify, classify_test_loader,
    decoded_images, load_to_evaluate, next_token, next_token_test_loader, open_images, open_text, settings_beside,
};
use anyhow::Result;
use burn::tensor::Device;
use kiln_data::Loader;
use kiln_models::SafetensorsModel;
use kiln_training::{Task, evaluate_in_parts};
use serde_json::{Map, Value, json};

use checkpoint::{apply, chosen, settings};

use crate::cli::{Eval, EvalArgs};
use crate::log::RESULT;
use crate::progress::{Progress, Watched};
use crate::train::prepare::check_classes;

pub(crate) fn run(command: Eval) -> Result<ExitCode> {
    match command {
        Eval::Classify(mut arguments) => {
            chosen(&mut arguments)?;
            let mut settings: ClassifySettings = settings(&arguments, Kind::Classify)?;
            apply(&arguments, &mut settings.run);
            let device = device::open(&settings.run.device)?;
            let test = decoded_images(open_images(settings.run.data.as_deref())?.test, &settings);
            check_against(&test, &settings)?;
            if let Some(run) = settings_beside(&arguments.checkpoint).as_deref().and_then(Path::parent) {
                check_classes(run, test.classes())?;
            }
            let task = classify(&settings)?.weighing_classes(&test);
            let test = classify_test_loader(test, &settings)?;
            report(&arguments, &device, &task, &test, settings.model.init(&device)?, &settings)
        }
        Eval::Segment(mut arguments) => {
            chosen(&mut arguments.eval)?;
            segment::run(&arguments)
        }
        Eval::Gpt(mut arguments) => {
            chosen(&mut arguments)?;
            let mut settings: GptSettings = settings(&arguments, Kind::Gpt)?;
            apply(&arguments, &mut settings.run);
            let device = device::open(&settings.run.device)?;
            let (tokenizer, task) = next_token(&settings)?;
            let test = next_token_test_loader(open_text(&settings, &tokenizer)?.test, &settings.run)?;
            report(&arguments, &device, &task, &test, settings.model.init(&device)?, &settings)
        }
    }
}

fn report<T: Task<Model: SafetensorsModel>>(
    arguments: &EvalArgs,
    device: &Device,
    task: &T,
    test: &Loader<T::Batch>,
    model: T::Model,
    settings: &impl PipelineSettings,
) -> Result<ExitCode> {
    let run = settings.run();
    // In the precision of the training, so that the figures are those of the run.
    kiln_precision::check_device(device, run.precision)?;
    let model = load_to_evaluate(model, settings.compression(), &run.policy(), &arguments.checkpoint)?;
    let started = Instant::now();
    // At most as many samples at once as in training, so that the figures are those of the run.
    let figures = evaluate_in_parts(
        task,
        &model,
        &Watched::new(test, &Progress::new()),
        device,
        run.micro_batch.unwrap_or(usize::MAX),
    )?;
    let seconds = started.elapsed().as_secs_f64();
    for (name, value) in &figures {
        tracing::info!(target: RESULT, "{name} {value:.4}");
    }
    if arguments.json {
        let mut results: Map<String, Value> =
            figures.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        results.insert("samples".into(), json!(test.samples()));
        results.insert("seconds".into(), json!(seconds));
        print_json(&Value::Object(results))?;
    }
    Ok(ExitCode::SUCCESS)
}
