//! `sample`: generates text with the decoder of a run.

mod generate;
mod output;
mod stored;
mod text;

use std::process::ExitCode;

use anyhow::{Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use kiln_data::printable;
use kiln_models::{Decoder, Sampling};
use rand::RngExt;

use crate::cli::{Sample, program};
use crate::device;
use crate::interrupt::Interrupt;
use crate::pipelines::next_token::{next_token, reader};
use crate::pipelines::{GptSettings, load_to_evaluate};
use crate::trained::{Trained, simulates_inputs, weights};
use crate::usage::Usage;
use crate::words::counted;

use generate::{End, Generated, Generator};
use output::Output;
use stored::stored;

pub(crate) fn run(arguments: &Sample) -> Result<ExitCode> {
    let sampling = sampling(arguments)?;
    let run = &arguments.trained.run;
    let settings = match Trained::open(&arguments.trained)? {
        Trained::Gpt(settings) => settings,
        other => bail!(Usage(format!(
            "'{run}' is {}, expected a run of `train gpt`; `{} predict {run} IMAGE..` classifies or segments images",
            other.kind(),
            program(),
            run = printable(&run),
        ))),
    };
    let (tokenizer, _) = next_token(&settings)?;
    let prompt = text::prompt(arguments)?;
    let ids = tokenizer.encode(&prompt)?;
    let device = device::open(&settings.run.device)?;
    kiln_precision::check_device(&device, settings.run.precision)?;
    let (streamed, model) = match stored(&settings, &arguments.trained, &device)? {
        Some((streamed, model)) => (Some(streamed), model),
        None => (None, in_memory(&settings, arguments, &device)?),
    };
    let interrupt = Interrupt::listen()?;

    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::rng().random::<u32>()));
    let reader = reader(&model, streamed.as_ref()).with_context(ids.len().saturating_add(arguments.tokens));
    let reader = if arguments.no_cache { reader.without_cache() } else { reader };
    let generator = Generator::new(reader, &ids, sampling, tokenizer.token_bytes(), seed)?;
    let output = Output::new(arguments.json, &prompt);
    let (mut tokens, mut seconds) = (0, generator.prompt_seconds());
    let mut end = End::Done;
    for sample in 0..arguments.samples {
        output.begin(sample)?;
        let stop = || interrupt.requested();
        let generated: Generated = generator.generate(sample, arguments.tokens, stop, |text| output.text(text))?;
        (tokens, seconds) = (tokens + generated.tokens, seconds + generated.seconds);
        end = generated.end;
        output.end(sample, &generated, seed)?;
        if end != End::Done {
            break;
        }
    }
    if end != End::Closed {
        let speed = tokens as f64 / seconds;
        tracing::info!("{} in {seconds:.1} s, {speed:.0} tokens/s; --seed {seed}", counted(tokens, "token"));
    }
    Ok(if end == End::Interrupted { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// The model with its weights.
fn in_memory(settings: &GptSettings, arguments: &Sample, device: &Device) -> Result<Decoder> {
    let (compression, path) = (settings.compression.as_ref(), weights(&arguments.trained)?);
    let model: Decoder = load_to_evaluate(settings.model.init(device)?, compression, &settings.run.policy(), &path)?;
    // Adapters, masks and casts are applied once instead of for each token.
    Ok(if simulates_inputs(compression, &path) { model } else { model.materialize() })
}

/// The settings by which tokens are chosen. Invalid numbers are refused.
fn sampling(arguments: &Sample) -> Result<Sampling> {
    for (option, value) in [("--tokens", arguments.tokens), ("--samples", arguments.samples)] {
        if value == 0 {
            bail!(Usage(format!("{option} is 0, expected at least 1")));
        }
    }
    let sampling = Sampling::new(arguments.temperature);
    let sampling = arguments.top_k.map_or(sampling, |k| sampling.with_top_k(k));
    let sampling = arguments.top_p.map_or(sampling, |p| sampling.with_top_p(p));
    sampling.check()?;
    Ok(sampling)
}
