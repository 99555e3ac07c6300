//! `compress quantize`: weights, and inputs of layers, in few bits.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use bytesize::ByteSize;
use kiln_compression::{
    ErrorReport, FakeQuantizer, Granularity, Quantization, QuantizedModel, Range, RangeMethod, WeightRange,
    assign_bits, bit_choices, calibrate, input_ranges, quantize, unsimulated,
};
use kiln_data::printable;
use kiln_precision::uncast;
use kiln_report::CompressionPage;
use kiln_runs::replace;
use kiln_training::{BatchSource, Pass, evaluate};
use serde_json::{Map, Value, json};

use super::before::{Before, Compressible, before, metric_of, model_of, written};
use crate::cli::CompressQuantize;
use crate::output::{path_json, print_json};
use crate::pipelines::{
    Findings, INPUT_RANGES, QUANTIZED, QuantizeSettings, Run, SettingsOf, load_to_evaluate, simulate_inputs,
};
use crate::run_directory::RunDirectory;
use crate::usage::Usage;

/// Default number of passes over the data if the model is trained for its bits.
const EPOCHS: u64 = 3;
/// A share of the run's highest learning rate.
const RATE: f64 = 0.1;
/// How far a batch moves the ranges of inputs, as in torch.ao.
const MOMENTUM: f64 = 0.01;

/// Refuses options of training if the model is quantised as it is.
pub(super) fn check(arguments: &CompressQuantize) -> Result<()> {
    let of_training = [
        ("--learning-rate", arguments.compress.learning_rate.is_some()),
        ("--memory", arguments.compress.memory.is_some()),
    ];
    match of_training.iter().find(|(_, given)| *given && !trains(arguments)) {
        Some((option, _)) => {
            bail!(Usage(format!("{option} is for training, expected --epochs or --max-steps beside it")))
        }
        None => Ok(()),
    }
}

/// Whether the model is trained in few bits.
fn trains(arguments: &CompressQuantize) -> bool {
    arguments.compress.epochs.is_some() || arguments.compress.max_steps.is_some()
}

pub(super) fn run<P: Compressible>(settings: SettingsOf<P>, arguments: &CompressQuantize) -> Result<ExitCode> {
    let method = method(&arguments.calibrate)?;
    let trains = trains(arguments);
    let (before, probe) = before::<P>(settings, &arguments.compress)?;
    let weights = weights(arguments, &before.model, trains)?;
    match trains {
        true => trained(before, probe, weights, arguments),
        false => calibrated(before, &probe, &weights, method, arguments),
    }
}

/// The weights to quantise, and the bits of each.
fn weights(arguments: &CompressQuantize, model: &impl Module, trains: bool) -> Result<Quantization> {
    let granularity = arguments.block.map_or(Granularity::Channel, Granularity::Block);
    let mut settings = Quantization {
        skip: arguments.skip.clone(),
        // Training simulates ranges that clip no weight.
        range: if trains { WeightRange::Max } else { WeightRange::LeastSquares },
        ..Quantization::bits(arguments.bits).granularity(granularity).half_scales()
    };
    if let Some(bytes) = arguments.budget {
        let bits: Vec<u8> = (2..=arguments.bits).filter(|bits| ![5, 7].contains(bits)).collect();
        let choices = bit_choices(model, &settings, &bits, &BTreeMap::new())?;
        settings.bits_of = assign_bits(&choices, bytes)?.bits;
    }
    Ok(settings)
}

fn method(text: &str) -> Result<RangeMethod> {
    let percentile = text.strip_prefix("percentile:").and_then(|number| number.parse().ok());
    match (text, percentile) {
        ("min-max", _) => Ok(RangeMethod::MinMax),
        ("mse", _) => Ok(RangeMethod::Mse),
        (_, Some(percentile)) => Ok(RangeMethod::Percentile(percentile)),
        _ => bail!(Usage(format!(
            "--calibrate is '{text}', expected min-max, percentile:P or mse, as in percentile:99.9"
        ))),
    }
}

/// Quantises the model as it is.
fn calibrated<P: Compressible>(
    before: Before<P>,
    probe: &Run<P>,
    weights: &Quantization,
    method: RangeMethod,
    arguments: &CompressQuantize,
) -> Result<ExitCode> {
    let integers = quantize(&before.model, weights)?;
    let ranges = match arguments.inputs {
        true => ranges_of(&before, probe, &integers, weights, method, arguments)?,
        false => BTreeMap::new(),
    };
    let mut settings = before.settings.clone();
    P::set_lean(&mut settings.model, !arguments.inputs);
    settings.compression.get_or_insert_default().quantize =
        Some(QuantizeSettings { weights: weights.clone(), input_momentum: arguments.inputs.then_some(0.0) });
    let directory = RunDirectory::create(arguments.compress.out.as_deref(), probe.setup.name, &settings)?;
    directory.write_classes(&probe.setup.classes)?;
    let outcome = Outcome::<P>::of(integers, before.model, ranges)?;
    outcome.save(directory.path())?;
    let figures = outcome.evaluate(&settings, probe, &before.device, directory.path())?;
    let after = metric_of::<P>(&figures)?;
    let report = outcome.integers.report(&outcome.model)?;
    tracing::info!("quantised weights:\n{report}"); // the columns stand below each other
    written(outcome.page(&report, before.metric, after, &Shown::of(arguments)))(directory.path())?;
    let (name, was) = (P::METRIC, before.metric);
    tracing::info!(
        "{name} {was:.4} becomes {after:.4}, {} become {}: {}",
        ByteSize(outcome.bytes[0]),
        ByteSize(outcome.bytes[1]),
        printable(directory.path())
    );
    if arguments.compress.json {
        let mut results: Map<String, Value> =
            figures.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        results.insert(format!("{name}_before"), json!(was));
        results.insert("bytes_before".into(), json!(outcome.bytes[0]));
        results.insert("bytes".into(), json!(outcome.bytes[1]));
        results.insert("run".into(), path_json(directory.path()));
        print_json(&Value::Object(results))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The ranges of layers' inputs on training batches, for the model with quantised weights.
fn ranges_of<P: Compressible>(
    before: &Before<P>,
    probe: &Run<P>,
    integers: &QuantizedModel,
    weights: &Quantization,
    method: RangeMethod,
    arguments: &CompressQuantize,
) -> Result<BTreeMap<String, Range>> {
    simulate_inputs();
    let device = before.device.clone().inner();
    let plain = integers.apply(model_of::<P>(&before.source, &arguments.compress, false, &device)?)?;
    let inputs = FakeQuantizer::of(&plain, weights)?.with_inputs(0.0)?.inputs_only();
    let model = plain.apply_reparameterization(inputs);
    let batches = BatchSource::epoch(&probe.setup.data.train, 0, 0).take(arguments.calibration_batches as usize);
    let (ranges, seen) = calibrate(method, || -> Result<usize> {
        let mut seen = 0;
        for batch in batches {
            let metrics = probe.task.metrics(&Pass::plain(&model, &device), &batch?);
            drop(metrics);
            seen += 1;
        }
        Ok(seen)
    })?;
    if seen? == 0 {
        bail!(Usage("--calibration-batches is 0, expected at least 1".into()));
    }
    Ok(ranges)
}

/// Trains the model while its weights are rounded to the values of its integers.
fn trained<P: Compressible>(
    mut before: Before<P>,
    probe: Run<P>,
    weights: Quantization,
    arguments: &CompressQuantize,
) -> Result<ExitCode> {
    before.set_length(&arguments.compress, EPOCHS, RATE);
    P::set_lean(&mut before.settings.model, !arguments.inputs);
    let input_momentum = arguments.inputs.then_some(MOMENTUM);
    before.compression().quantize = Some(QuantizeSettings { weights: weights.clone(), input_momentum });
    let (start, was, settings) = (before.model.clone(), before.metric, before.settings.clone());
    let shown = Shown::of(arguments);
    before.train(Some(start), &arguments.compress, move |model, device, _| {
        let plain = uncast(|| unsimulated(|| model.clone().materialize())).valid();
        let integers = quantize(&plain, &weights)?;
        let outcome = Outcome::<P>::of(integers, plain, input_ranges(model))?;
        let folder = tempfile::tempdir()?;
        outcome.save(folder.path())?;
        let figures = outcome.evaluate(&settings, &probe, device, folder.path())?;
        let after = metric_of::<P>(&figures)?;
        let page = outcome.page(&outcome.integers.report(&outcome.model)?, was, after, &shown);
        let mut found = vec![
            (format!("{}_before", P::METRIC), was),
            ("bytes_before".into(), outcome.bytes[0] as f64),
            ("bytes".into(), outcome.bytes[1] as f64),
        ];
        found.extend(figures.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let files = vec![written(page), Box::new(move |directory: &Path| outcome.save(directory))];
        Ok(Findings { figures: found, files, ..Findings::default() })
    })
}

/// The requested settings, for the page.
struct Shown {
    bits: u8,
    block: Option<usize>,
    inputs: bool,
}

impl Shown {
    fn of(arguments: &CompressQuantize) -> Self {
        Self { bits: arguments.bits, block: arguments.block, inputs: arguments.inputs }
    }
}

/// A quantised model.
struct Outcome<P: Compressible> {
    integers: QuantizedModel,
    /// The model that was quantised.
    model: P::Model,
    ranges: BTreeMap<String, Range>,
    /// Bytes of all parameters, before and after.
    bytes: [u64; 2],
}

impl<P: Compressible> Outcome<P> {
    fn of(integers: QuantizedModel, model: P::Model, ranges: BTreeMap<String, Range>) -> Result<Self> {
        let bytes = integers.bytes(&model)?;
        // Two numbers for each range.
        let bytes = [bytes.before, bytes.after + 8 * ranges.len() as u64];
        Ok(Self { integers, model, ranges, bytes })
    }

    /// Writes the integers, and the ranges of inputs if there are any.
    fn save(&self, directory: &Path) -> Result<()> {
        self.integers.save(&self.model, directory.join(QUANTIZED))?;
        match self.ranges.is_empty() {
            true => Ok(()),
            false => Ok(replace(&directory.join(INPUT_RANGES), &serde_json::to_vec_pretty(&self.ranges)?)?),
        }
    }

    /// The metrics of the model in the files of `directory`.
    fn evaluate(
        &self,
        settings: &SettingsOf<P>,
        probe: &Run<P>,
        device: &Device,
        directory: &Path,
    ) -> Result<Vec<(&'static str, f64)>> {
        let plain = P::plain(&settings.model, self.ranges.is_empty(), &device.clone().inner())?;
        let model = load_to_evaluate(plain, settings.compression.as_ref(), &settings.run.policy(), directory)?;
        Ok(evaluate(&probe.task, &model, &probe.setup.data.test, device)?)
    }

    fn page(&self, report: &ErrorReport, was: f64, after: f64, shown: &Shown) -> CompressionPage {
        let rows = report.weights.iter().map(|weight| {
            let ratio = weight.sqnr_db.map_or("exact".into(), |ratio| format!("{ratio:.1}"));
            let range = self.ranges.get(&weight.path);
            let range = range.map_or("-".into(), |range| format!("{:.3} to {:.3}", range.low, range.high));
            vec![
                weight.path.clone(),
                weight.bits.to_string(),
                ratio,
                format!("{:.2e}", weight.largest),
                weight.before.to_string(),
                weight.after.to_string(),
                range,
            ]
        });
        let block = shown.block.map_or("an output channel".to_owned(), |block| format!("at most {block} values"));
        CompressionPage {
            title: "Quantised model".into(),
            figures: vec![
                [P::METRIC.into(), format!("{was:.4}"), format!("{after:.4}")],
                ["bytes".into(), ByteSize(self.bytes[0]).to_string(), ByteSize(self.bytes[1]).to_string()],
            ],
            facts: vec![
                ("bits of a weight, at most".into(), shown.bits.to_string()),
                ("weights that share a scale".into(), block),
                ("inputs of layers".into(), if shown.inputs { "8 bits" } else { "f32" }.into()),
            ],
            columns: ["weight", "bits", "signal to error, dB", "largest error", "bytes before", "bytes", "input"]
                .map(str::to_owned)
                .into(),
            rows: rows.collect(),
        }
    }
}
