//! `kiln eval`: metrics of a checkpoint on held-out data. Evaluations of a run select its best checkpoint and have names with `val_`; this
//! last measurement has `test_` in their place.

mod segment;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_data::{Loader, has_records, printable};
use kiln_runs::{Progress, Watched};
use kiln_training::evaluate_in_parts;
use serde_json::{Map, Value, json};

use crate::cli::{Eval, EvalArgs, EvalCommand, EvalOptions, EvalSegment};
use crate::device;
use crate::log::{RESULT, is_quiet};
use crate::output::print_json;
use crate::pipelines::{Classify, NextToken, Pipeline, Segment, SettingsOf, classify, load_to_evaluate, next_token};
use crate::run_directory::check_classes_of;
use crate::settings_file::SettingsFile;
use crate::trained::{Trained, best};
use crate::usage::Usage;

pub(crate) fn run(command: EvalCommand) -> Result<ExitCode> {
    match of_run(command)? {
        Eval::Classify(mut arguments) => {
            let settings = settings::<Classify>(&mut arguments)?;
            let device = device::open(&settings.run.device)?;
            let test = classify::decoded(classify::open(settings.run.data.as_deref())?.test, &settings);
            classify::check_against(&test, &settings)?;
            check_classes_of(&arguments.checkpoint, test.classes())?;
            let task = classify::classify(&settings)?.weighing_classes(&test);
            let test = classify::test_loader(test, &settings)?;
            report(&arguments, &device, &task, &test, settings.model.init(&device)?, &settings)
        }
        Eval::Segment(mut arguments) => {
            let settings = settings::<Segment>(&mut arguments.eval)?;
            segment::run(&arguments, settings)
        }
        Eval::Gpt(mut arguments) => {
            let mut settings = settings::<NextToken>(&mut arguments)?;
            if let Some(data) = &arguments.options.data {
                // All records of a file are evaluated on, and of a text the end.
                settings.data.text.validation = Some(data.clone()).filter(|data| has_records(data));
            }
            let device = device::open(&settings.run.device)?;
            let (tokenizer, task) = next_token::next_token(&settings)?;
            let test = next_token::test_loader(next_token::open(&settings, &tokenizer)?.test, &settings.run)?;
            report(&arguments, &device, &task, &test, settings.model.init(&device)?, &settings)
        }
    }
}

/// The evaluation of the kind that was named, or else of the run's.
fn of_run(command: EvalCommand) -> Result<Eval> {
    let EvalCommand { kind, run, checkpoint, options } = command;
    let checkpoint = match (kind, run, checkpoint) {
        (Some(kind), None, None) if options == EvalOptions::default() => return Ok(kind),
        (None, Some(run), None) | (None, None, Some(run)) => run,
        (None, None, None) => bail!(Usage("no run is named, expected `eval RUN`".into())),
        (None, Some(run), Some(_)) => {
            bail!(Usage(format!("'{}' is no kind of model, expected classify, segment or gpt", printable(&run))))
        }
        (Some(_), ..) => {
            let expected =
                "expected `eval RUN`, or the kind of the model before all options: `eval KIND --checkpoint RUN`";
            bail!(Usage(expected.into()))
        }
    };
    let trained = Trained::read(&SettingsFile::of_checkpoint(&checkpoint, options.config.as_ref())?)?;
    let eval = EvalArgs { checkpoint, options };
    Ok(match trained {
        Trained::Classify(_) => Eval::Classify(eval),
        Trained::Segment(_) => Eval::Segment(EvalSegment::new(eval)),
        Trained::Gpt(_) => Eval::Gpt(eval),
    })
}

/// The settings of a checkpoint, with the data, the device and the batch of the arguments. `--best` chooses the checkpoint.
fn settings<P: Pipeline>(arguments: &mut EvalArgs) -> Result<SettingsOf<P>> {
    if arguments.options.best {
        arguments.checkpoint = best(&arguments.checkpoint)?;
    }
    let file = SettingsFile::of_checkpoint(&arguments.checkpoint, arguments.options.config.as_ref())?;
    let mut settings = file.settings::<P>()?;
    let run = &mut settings.run;
    run.leave_training(arguments.options.device.as_ref());
    run.data = arguments.options.data.clone().or(run.data.take());
    if let Some(samples) = arguments.options.batch_size {
        (run.batch_size, run.micro_batch, run.planned_micro_batch) = (samples, None, None);
    }
    Ok(settings)
}

fn report<P: Pipeline>(
    arguments: &EvalArgs,
    device: &Device,
    task: &P,
    test: &Loader<P::Batch>,
    model: P::Model,
    settings: &SettingsOf<P>,
) -> Result<ExitCode> {
    let run = &settings.run;
    // In the precision of the training, so that the figures are those of the run.
    kiln_precision::check_device(device, run.precision)?;
    let model = load_to_evaluate(model, settings.compression.as_ref(), &run.policy(), &arguments.checkpoint)?;
    let started = Instant::now();
    // At most as many samples at once as in training, so that the figures are those of the run.
    let figures = evaluate_in_parts(
        task,
        &model,
        &Watched::new(test, &Progress::new(!is_quiet())),
        device,
        run.micro_batch.or(run.planned_micro_batch).unwrap_or(usize::MAX),
    )?;
    let seconds = started.elapsed().as_secs_f64();
    let of_test = |name: &str| name.strip_prefix("val_").map_or_else(|| name.to_owned(), |name| format!("test_{name}"));
    let figures: Vec<_> = figures.into_iter().map(|(name, value)| (of_test(name), value)).collect();
    for (name, value) in &figures {
        tracing::info!(target: RESULT, "{name} {value:.4}");
    }
    if arguments.options.json {
        let mut results: Map<String, Value> = figures.into_iter().map(|(name, value)| (name, json!(value))).collect();
        results.insert("samples".into(), json!(test.samples()));
        results.insert("seconds".into(), json!(seconds));
        print_json(&Value::Object(results))?;
    }
    Ok(ExitCode::SUCCESS)
}
