//! `sample`: generates text with the decoder of a run or of a folder, and chats with it.

mod chat;
mod folder;
mod generate;
mod output;
mod records;
mod stored;
mod text;

use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use kiln_data::{Tokenizer, printable};
use kiln_models::{Decoder, Sampling};
use rand::RngExt;

use crate::cli::{Sample, program};
use crate::device;
use crate::interrupt::Interrupt;
use crate::pipelines::next_token::{next_token, reader, stops};
use crate::pipelines::{GptSettings, load_to_evaluate, peft};
use crate::trained::{Trained, simulates_inputs, weights};
use crate::usage::Usage;

use chat::Chat;
use folder::untrained;
use generate::{End, Writer};
use kiln_report::counted;
use output::Output;
use records::{Asked, Records};
use stored::stored;

pub(crate) fn run(arguments: &Sample) -> Result<ExitCode> {
    let (sampling, run) = (sampling(arguments)?, &arguments.trained.run);
    let untrained = untrained(&arguments.trained)?;
    let is_trained = untrained.is_none();
    let settings = match untrained
        .map_or_else(|| Trained::open(&arguments.trained), |of| Ok(Trained::Gpt(Box::new(of))))?
    {
        Trained::Gpt(settings) => settings,
        other => bail!(Usage(format!(
            "'{run}' is {}, expected a run of `train gpt`; `{} predict {run} IMAGE..` classifies or segments images",
            other.kind(),
            program(),
            run = printable(&run),
        ))),
    };
    if let Some(folder) = arguments.adapters.as_ref().filter(|_| is_trained) {
        let (folder, run) = (printable(folder), printable(run));
        bail!(Usage(format!(
            "--adapters is '{folder}', and '{run}' is a run, expected a model's folder to add adapters to"
        )));
    }
    let (tokenizer, _) = next_token(&settings)?;
    let kind = &settings.data.text.tokenizer;
    let template = arguments.chat.then(|| chat::template(kind, "--chat")).transpose()?;
    let stops = stops(kind, &tokenizer)?;
    let prompt = text::prompt(arguments)?;
    let asked = arguments.records.as_deref().map(Asked::open).transpose()?;
    let device = device::open(&settings.run.device)?;
    kiln_precision::check_device(&device, settings.run.precision)?;
    let (streamed, model) = match (is_trained, stored(&settings, &arguments.trained, &device)?) {
        (_, Some((streamed, model))) => (Some(streamed), model),
        (true, None) => (None, in_memory(&settings, arguments, &device)?),
        (false, None) => (None, adapted(settings.model.load(run, &device)?, arguments.adapters.as_deref())?),
    };
    let interrupt = Interrupt::listen()?;

    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::rng().random::<u32>()));
    let reader = reader(&model, streamed.as_ref());
    let writer = Writer {
        reader: if arguments.no_cache { reader.without_cache() } else { reader },
        sampling,
        tokens: arguments.tokens,
        bytes: tokenizer.token_bytes(),
        stops,
        seed,
        interrupted: Box::new(|| interrupt.requested()),
        total: Cell::default(),
    };
    let end = match (&template, asked) {
        (_, Some(asked)) => {
            let (room, kind) = (settings.model.context(), kind);
            Records { writer: &writer, tokenizer: &tokenizer, kind, room, interrupt: &interrupt }.complete(asked)?
        }
        (Some(template), None) => {
            let room = settings.model.context();
            let chat = Chat { writer: &writer, tokenizer: &tokenizer, template, room, interrupt: &interrupt };
            chat.answer(prompt, arguments.json)?
        }
        (None, None) => texts(&writer, (&tokenizer, !is_trained), prompt.as_deref().unwrap_or(text::NONE), arguments)?,
    };
    if end != End::Closed {
        let (tokens, seconds) = writer.total.get();
        let speed = tokens as f64 / seconds.max(f64::MIN_POSITIVE);
        tracing::info!("{} in {seconds:.1} s, {speed:.0} tokens/s; --seed {seed}", counted(tokens, "token"));
    }
    Ok(if end == End::Interrupted { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// Writes continuations of `prompt`, before which a model of a folder that was not trained here reads what its tokenizer puts there. Returns why
/// the last one ended.
fn texts(
    writer: &Writer<'_>,
    (tokenizer, is_folder): (&Tokenizer, bool),
    prompt: &str,
    arguments: &Sample,
) -> Result<End> {
    let begin = if is_folder { tokenizer.begin() } else { None };
    let ids: Vec<u32> = begin.into_iter().chain(tokenizer.encode(prompt)?).collect();
    let prompted = writer.prompt(&ids)?;
    let output = Output::new(arguments.json, prompt);
    for sample in 0..arguments.samples {
        output.begin(sample)?;
        let generated = prompted.generate(sample, |text| output.text(text))?;
        output.end(sample, &generated, writer.seed)?;
        if generated.end != End::Done {
            return Ok(generated.end);
        }
    }
    Ok(End::Done)
}

/// The model with its weights.
fn in_memory(settings: &GptSettings, arguments: &Sample, device: &Device) -> Result<Decoder> {
    let (compression, path) = (settings.compression.as_ref(), weights(&arguments.trained)?);
    let model: Decoder = load_to_evaluate(settings.model.init(device)?, compression, &settings.run.policy(), &path)?;
    // Adapters, masks and casts are applied once instead of for each token.
    Ok(if simulates_inputs(compression, &path) { model } else { model.materialize() })
}

/// The model with the adapters in a folder of peft in its weights.
fn adapted(model: Decoder, folder: Option<&Path>) -> Result<Decoder> {
    match folder {
        Some(folder) => Ok(peft::adapters(folder)?.merge_into(model)?),
        None => Ok(model),
    }
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
