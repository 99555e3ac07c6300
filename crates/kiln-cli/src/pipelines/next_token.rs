//! Language modelling with a GPT-2-style decoder.
// B batch, T time, C width

use anyhow::{Result, bail};
use burn::tensor::{Device, Int, Tensor};
use kiln_checkpointing::{TensorMap, Tensors};
use kiln_compression::Teacher;
use kiln_data::{Loader, Order, Remainder, TextBatch, TextTokens, Tokenizer, TokenizerKind, TrainTest};
use kiln_models::{Gpt, GptBlock, GptConfig};
use kiln_training::{Metric, Metrics, OptimizerConfig, Pass, ScheduleConfig, Task, perplexity};

use super::beginning::Beginning;
use super::chained::Chained;
use super::compression::TeacherSettings;
use super::run::{Run, Setup};
use super::settings::{GptSettings, RunSettings, TextSettings};
use super::teacher::{Tutor, settings_of};
use super::written;
use crate::usage::Usage;
use crate::{cache, device, fixtures};

/// The task of language modelling: cross-entropy of the next token. Evaluation also reports it per byte of text, which does not depend on
/// the tokenizer.
pub struct NextToken {
    /// The number of bytes of each token.
    byte_lengths: Vec<u32>,
    /// A model whose probabilities are a target beside the text.
    teacher: Option<Tutor<Gpt>>,
}

/// The targets of the loss.
#[derive(Clone)]
pub struct Targets {
    next_bt: Tensor<2, Int>,
    taught: Option<Teacher>,
}

impl Tensors for Targets {
    fn map<M: TensorMap>(self, map: &mut M) -> Self {
        let taught = self.taught.map(|taught| match taught {
            Teacher::Linear { hidden, weight } => {
                Teacher::Linear { hidden: map.float(hidden), weight: map.float(weight) }
            }
            taught => taught, // no other one is made here
        });
        Self { next_bt: map.int(self.next_bt), taught }
    }
}

impl Task for NextToken {
    type Model = Gpt;
    type Batch = TextBatch;

    fn loss(&self, pass: &Pass<'_, Gpt>, batch: &TextBatch) -> Tensor<1> {
        let (x_btc, targets) = self.begin(pass.model(), batch, pass.device());
        let x_btc = pass.chain(&self.blocks(pass.model()), x_btc, Self::forward);
        self.end(pass.model(), x_btc, pass.to_device(targets))
    }

    fn resident_bytes(&self) -> u64 {
        self.teacher.as_ref().map_or(0, Tutor::bytes)
    }

    fn metrics(&self, pass: &Pass<'_, Gpt>, batch: &TextBatch) -> Metrics {
        let (inputs_bt, targets_bt) = batch.to_device(pass.device());
        let x_btc = pass.chain(&self.blocks(pass.model()), pass.model().embed(inputs_bt), Self::forward);
        let mean = pass.model().loss(x_btc, pass.to_device(targets_bt));
        let windows = batch.tokens.chunks_exact(batch.shape[1]);
        let bytes: u32 = windows.flat_map(|window| &window[1..]).map(|id| self.byte_lengths[*id as usize]).sum();
        let tokens = batch.targets();
        let nats = mean * tokens as f64;
        let per_byte = Metric::mean(nats.clone(), bytes as usize).finished_by(|nats| nats / std::f64::consts::LN_2);
        Metrics::new()
            .with("bits_per_byte", per_byte)
            .with("perplexity", Metric::mean(nats.clone(), tokens).finished_by(perplexity))
            .with("test_loss", Metric::mean(nats, tokens))
    }
}

impl Chained for NextToken {
    type Block = GptBlock;
    type X = Tensor<3>;
    type Target = Targets;

    fn begin(&self, model: &Gpt, batch: &TextBatch, device: &Device) -> (Tensor<3>, Targets) {
        let (inputs_bt, next_bt) = batch.to_device(device);
        let taught = self.teacher.as_ref().map(|teacher| {
            let model = teacher.on(device);
            let (hidden, weight) = model.output(model.features(inputs_bt.clone()));
            Teacher::Linear { hidden, weight }
        });
        (model.embed(inputs_bt), Targets { next_bt, taught })
    }

    fn blocks(&self, model: &Gpt) -> Vec<GptBlock> {
        model.blocks()
    }

    fn forward(block: &GptBlock, x_btc: Tensor<3>) -> Tensor<3> {
        block.forward(x_btc)
    }

    fn end(&self, model: &Gpt, x_btc: Tensor<3>, Targets { next_bt, taught }: Targets) -> Tensor<1> {
        match (&self.teacher, taught) {
            (Some(teacher), Some(taught)) => {
                let (hidden, weight) = model.output(x_btc.clone());
                let taught = teacher.loss.forward_linear(hidden, weight, taught);
                // The vocabularies were compared when the teacher was loaded.
                let taught = taught.unwrap_or_else(|error| panic!("{error}"));
                taught * teacher.share + model.loss(x_btc, next_bt) * (1.0 - teacher.share)
            }
            _ => model.loss(x_btc, next_bt),
        }
    }
}

impl NextToken {
    /// A task for memory predictions only: metrics would need the lengths of the tokens.
    pub fn unmeasured() -> Self {
        Self { byte_lengths: vec![], teacher: None }
    }
}

/// The recipe for the book in fixtures/: a thousand small steps, which 2 CPU cores take in about two minutes.
pub fn fixture_recipe() -> GptSettings {
    let mut recipe = recipe();
    recipe.run.max_steps = Some(1000);
    recipe.run.evaluate_every = 200;
    recipe
}

/// The recipe for a text of the user's: one pass with the tiny model.
pub fn recipe() -> GptSettings {
    GptSettings {
        run: RunSettings { clip_norm: Some(1.0), workers: 1, ..RunSettings::new(1, 8) },
        text: TextSettings { tokenizer: TokenizerKind::Bytes, held_out: 0.05 },
        model: GptConfig::tiny(256, 64),
        optimizer: OptimizerConfig::adamw(),
        schedule: ScheduleConfig { peak: 3e-3, warmup: 0.1, floor: 0.1 },
        compression: None,
    }
}

/// Opens the text that the settings name, or the fixture if they name none. Its tokens are kept in the user's cache.
///
/// # Errors
/// Those of [`kiln_data::open_text`].
pub fn open(settings: &GptSettings, tokenizer: &Tokenizer) -> Result<TrainTest<TextTokens>> {
    let (length, held_out) = (settings.model.context, settings.text.held_out);
    let fixture = || fixtures::data_set("moby-dick/moby-dick.txt", "data/sotu after `kiln fetch sotu`");
    let path = settings.run.data.clone().map_or_else(fixture, Ok)?;
    if let Some(cache) = cache::directory() {
        match kiln_data::open_text_cached(&path, tokenizer, length, held_out, cache.join("tokens")) {
            // Without a cache directory the tokens stay in memory, and are made again next time.
            Err(error @ kiln_data::Error::Write { .. }) => tracing::debug!("{error}"),
            opened => return Ok(opened?),
        }
    }
    Ok(kiln_data::open_text(path, tokenizer, length, held_out)?)
}

/// Batches of a text's two parts.
fn loaders(data: TrainTest<TextTokens>, run: &RunSettings) -> Result<TrainTest<Loader<TextBatch>>> {
    let (text, seed) = (data.train, run.seed);
    let config = run
        .loader(text.len())
        .with_order(Order::Shuffled { seed })
        .with_replica(run.replica)
        .with_remainder(Remainder::Drop);
    let config = config.with_batch_size(run.batch_size);
    let train = TextBatch::loader(text, Some(seed), config)?;
    Ok(TrainTest { train, test: test_loader(data.test, run)? })
}

/// Batches of the part for evaluation.
///
/// # Errors
/// Those of the loader.
pub fn test_loader(text: TextTokens, run: &RunSettings) -> Result<Loader<TextBatch>> {
    let config = run.loader(text.len());
    Ok(TextBatch::loader(text, None, config)?)
}

/// The tokenizer and the task; the model's vocabulary must be the tokenizer's.
///
/// # Errors
/// [`Usage`] for another vocabulary, and those of the tokenizer.
pub fn next_token(settings: &GptSettings) -> Result<(Tokenizer, NextToken)> {
    let tokenizer = Tokenizer::open(&settings.text.tokenizer)?;
    if settings.model.vocab != tokenizer.vocab() {
        let (vocab, expected) = (settings.model.vocab, tokenizer.vocab());
        return Err(Usage(format!("model.vocab is {vocab}, expected {expected} as in the tokenizer")).into());
    }
    let byte_lengths = tokenizer.byte_lengths();
    Ok((tokenizer, NextToken { byte_lengths, teacher: None }))
}

/// The teacher of a run.
fn tutor(settings: &TeacherSettings, of: &GptSettings, device: &Device) -> Result<Tutor<Gpt>> {
    let own: GptSettings = settings_of(&settings.checkpoint)?;
    for (what, teacher, student) in [
        ("tokens in its vocabulary", own.model.vocab, of.model.vocab),
        ("tokens of context", own.model.context, of.model.context),
    ] {
        if teacher != student {
            bail!(Usage(format!("the teacher has {teacher} {what}, expected {student} as the student")));
        }
    }
    let config = own.model.clone();
    Tutor::load(settings, move |device| config.init(device), own.compression.as_ref(), device)
}

/// The run of the settings, and its device.
///
/// # Errors
/// Those of the device, the data and the settings.
pub fn run(mut settings: GptSettings) -> Result<(Run<NextToken, GptSettings>, Device)> {
    let (tokenizer, task) = next_token(&settings)?;
    let data = open(&settings, &tokenizer)?;
    settings.run.fit_batch(data.train.len())?;
    let device = device::open(settings.run.own_device())?;
    let (model, beginning) = (settings.model.clone(), Beginning::of(&settings));
    let teacher = settings.compression.as_ref().and_then(|compression| compression.teacher.as_ref());
    let teacher = teacher.map(|teacher| tutor(teacher, &settings, &device)).transpose()?;
    let taken = beginning.taken();
    let findings = written::finder(data.test.clone(), tokenizer, settings.run.seed);
    let run = Run {
        task: NextToken { teacher, ..task },
        init: Box::new(move |device| beginning.begin(model.init(device)?, device)),
        findings: Some(findings),
        setup: Setup {
            name: "gpt",
            command: "gpt",
            classes: vec![],
            class_counts: None,
            notes: vec![],
            left_out: vec![],
            defaults: None,
            data: loaders(data, &settings.run)?,
            settings,
            taken,
        },
    };
    Ok((run, device))
}
