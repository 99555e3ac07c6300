//! Language modelling with a GPT-2-style decoder.
// B batch, T time, V vocabulary

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_accumulation::Weight;
use kiln_checkpointing::{Chain, Cost, Gauge, Plan, measure};
use kiln_data::{
    BadSamples, Loader, LoaderConfig, Order, Remainder, TextBatch, TextTokens, Tokenizer, TokenizerKind, TrainTest,
    open_text, open_text_cached,
};
use kiln_memory::Recorder;
use kiln_models::{Block, Gpt, GptConfig};
use kiln_precision::Precision;
use kiln_training::{OptimizerConfig, ScheduleConfig, Setting, Task, bits_per_byte, perplexity};

use super::checkpointing::{Checkpointed, Checkpointing, plan_for};
use super::drive::{Run, Then};
use super::settings::{GptSettings, LoaderMemory, RunSettings, TextSettings, absolute, data_of, read, resolve};
use super::{refuse_changes, settings_file};
use crate::cli::TrainGpt;
use crate::fixtures;
use crate::usage::Usage;

/// Cross-entropy of the next token; measured also per byte of text, which tokenizers do not change.
pub(crate) struct Predict {
    /// Bytes that each token stands for.
    byte_lengths: Vec<u32>,
    /// Whether the blocks draw random numbers.
    dropout: bool,
    /// How the blocks are run while training; the later ones when memory runs out.
    plans: Vec<Plan>,
}

/// The mean cross-entropy over all tokens, a scalar, in f32.
fn cross_entropy(logits_btv: Tensor<3>, targets_bt: Tensor<2, Int>, device: &Device) -> Tensor<1> {
    let [b, t, v] = logits_btv.dims();
    let logits = logits_btv.reshape([b * t, v]).cast(DType::F32);
    CrossEntropyLossConfig::new().init(device).forward(logits, targets_bt.reshape([b * t]))
}

impl Task for Predict {
    type Model = Gpt;
    type Batch = TextBatch;

    fn samples(&self, batch: &TextBatch) -> usize {
        batch.len()
    }

    fn weight(&self, batch: &TextBatch) -> Weight {
        Weight::Tokens(batch.targets())
    }

    fn slice(&self, batch: &TextBatch, samples: Range<usize>) -> TextBatch {
        batch.slice(samples)
    }

    fn loss(&self, model: &Gpt, batch: &TextBatch, device: &Device) -> Tensor<1> {
        match self.plans.first() {
            Some(plan) => self.loss_by(model, batch, device, plan),
            None => {
                let (inputs_bt, targets_bt) = batch.to_device(device);
                cross_entropy(model.forward(inputs_bt), targets_bt, device)
            }
        }
    }

    fn loss_under(&self, model: &Gpt, batch: &TextBatch, device: &Device, setting: Setting) -> Tensor<1> {
        match plan_for(&self.plans, setting) {
            Some(plan) => self.loss_by(model, batch, device, &plan),
            None => self.loss(model, batch, device),
        }
    }

    fn measure(&self, model: &Gpt, batch: &TextBatch, device: &Device) -> Tensor<1> {
        let (inputs_bt, targets_bt) = batch.to_device(device);
        let mean = cross_entropy(model.forward(inputs_bt), targets_bt, device);
        let windows = batch.tokens.chunks_exact(batch.shape[1]);
        let bytes: u32 = windows.flat_map(|window| &window[1..]).map(|id| self.byte_lengths[*id as usize]).sum();
        let tokens = batch.targets() as f32;
        let counts = Tensor::<1>::from_data(TensorData::new(vec![tokens, bytes as f32], [2]), device);
        Tensor::cat(vec![counts, mean * tokens], 0)
    }

    fn figures(&self, sums: &[f64]) -> Vec<(&'static str, f64)> {
        let [tokens, bytes, nats] = sums else { return vec![] };
        let per_token = nats / tokens;
        vec![
            ("bits_per_byte", bits_per_byte(*nats, *bytes)),
            ("perplexity", perplexity(per_token)),
            ("test_loss", per_token),
        ]
    }
}

impl Predict {
    /// For recording only: what is measured needs a tokenizer.
    pub(crate) fn unmeasured() -> Self {
        Self { byte_lengths: vec![], dropout: false, plans: vec![] }
    }

    fn loss_by(&self, model: &Gpt, batch: &TextBatch, device: &Device, plan: &Plan) -> Tensor<1> {
        let (inputs_bt, targets_bt) = batch.to_device(device);
        // The plan was made for this chain, which captures nothing.
        let x = self.chain(model).run(plan, model.embed(inputs_bt), Block::forward).unwrap_or_else(|e| panic!("{e}"));
        cross_entropy(model.head(x), targets_bt, device)
    }

    fn chain(&self, model: &Gpt) -> Chain<Block> {
        let chain = Chain::new(model.blocks());
        if self.dropout { chain } else { chain.deterministic() }
    }
}

impl Checkpointed for Predict {
    fn blocks(&self, model: &Gpt) -> usize {
        model.blocks().count()
    }

    fn measure_blocks(&self, model: &Gpt, batch: &TextBatch, device: &Device, gauge: &Gauge) -> Vec<Cost> {
        let (inputs_bt, _) = batch.to_device(device);
        measure(&self.chain(model), model.embed(inputs_bt), Block::forward, gauge)
    }

    fn follow(&mut self, plans: Vec<Plan>) {
        self.plans = plans;
    }

    fn recorded(&self, model: &Gpt, batch: &TextBatch, recorder: &Recorder) -> Tensor<1> {
        let (inputs_bt, targets_bt) = batch.to_device(recorder.device());
        let x = model.embed(inputs_bt);
        recorder.cut();
        let x = model.blocks().fold(x, |x, block| {
            let x = block.forward(x);
            recorder.cut();
            x
        });
        cross_entropy(model.head(x), targets_bt, recorder.device())
    }

    fn host_bytes(&self, batch: &TextBatch) -> u64 {
        (4 * batch.tokens.len() + 8 * batch.ids.len()) as u64
    }

    fn repeated(&self, batch: &TextBatch, samples: usize) -> TextBatch {
        let first = batch.slice(0..1);
        TextBatch {
            tokens: first.tokens.repeat(samples),
            shape: [samples, batch.shape[1]],
            ids: first.ids.repeat(samples),
        }
    }
}

/// The recipe for the book in fixtures/: a thousand small steps, which 2 CPU cores take in about two minutes.
fn fixture_recipe() -> GptSettings {
    let mut recipe = recipe();
    recipe.run.max_steps = Some(1000);
    recipe.run.evaluate_every = 200;
    recipe
}

/// The recipe for a text of the user's: one pass with the tiny model.
fn recipe() -> GptSettings {
    GptSettings {
        run: RunSettings {
            data: None,
            device: "flex".into(),
            seed: 1,
            epochs: 1,
            max_steps: None,
            batch_size: 8,
            micro_batch: None,
            precision: Precision::F32,
            checkpointing: Checkpointing::None,
            memory: None,
            clip_norm: Some(1.0),
            workers: 1,
            loader_memory: LoaderMemory::default(),
            bad_samples: BadSamples::FAIL,
            evaluate_every: 0,
            save_every: 500,
            keep: 3,
        },
        text: TextSettings { tokenizer: TokenizerKind::Bytes, held_out: 0.05 },
        model: GptConfig::tiny(256, 64),
        optimizer: OptimizerConfig::adamw(),
        schedule: ScheduleConfig { peak: 3e-3, warmup: 0.1, floor: 0.1 },
    }
}

/// Opens the text that the settings name, the fixture when they name none. Its tokens are kept in the user's cache.
pub(crate) fn open(settings: &GptSettings, tokenizer: &Tokenizer) -> Result<TrainTest<TextTokens>> {
    let (length, held_out) = (settings.model.context, settings.text.held_out);
    let fixture = || anyhow::Ok(fixtures::directory()?.join("moby-dick").join("moby-dick.txt"));
    let path = settings.run.data.clone().map_or_else(fixture, Ok)?;
    if let Some(cache) = crate::cache::directory() {
        match open_text_cached(&path, tokenizer, length, held_out, cache.join("tokens")) {
            // Without a place to keep the tokens they are kept in memory, and made again the next time.
            Err(error @ kiln_data::Error::Write { .. }) => tracing::debug!("{error}"),
            opened => return Ok(opened?),
        }
    }
    Ok(open_text(path, tokenizer, length, held_out)?)
}

/// Batches of a text's two parts.
fn loaders(data: TrainTest<TextTokens>, run: &RunSettings) -> Result<TrainTest<Loader<TextBatch>>> {
    let (text, seed) = (data.train, run.seed);
    let config = LoaderConfig { order: Order::Shuffled { seed }, remainder: Remainder::Drop, ..run.loader(text.len()) };
    let config = LoaderConfig { batch_size: run.batch_size, ..config };
    let train = TextBatch::loader(text, Some(seed), config)?;
    Ok(TrainTest { train, test: test_loader(data.test, run)? })
}

/// Batches of the part that is measured on.
pub(crate) fn test_loader(text: TextTokens, run: &RunSettings) -> Result<Loader<TextBatch>> {
    let config = run.loader(text.len());
    Ok(TextBatch::loader(text, None, config)?)
}

/// The tokenizer and the task; the model's vocabulary must be the tokenizer's.
pub(crate) fn task(settings: &GptSettings) -> Result<(Tokenizer, Predict)> {
    let tokenizer = Tokenizer::open(&settings.text.tokenizer)?;
    if settings.model.vocab != tokenizer.vocab() {
        let (vocab, expected) = (settings.model.vocab, tokenizer.vocab());
        bail!(Usage(format!("model.vocab is {vocab}, expected {expected} as in the tokenizer")));
    }
    let byte_lengths = tokenizer.byte_lengths();
    let dropout = settings.model.dropout > 0.0;
    Ok((tokenizer, Predict { byte_lengths, dropout, plans: vec![] }))
}

/// Makes the run that the arguments describe, and hands it to `then`.
pub(crate) fn prepared(arguments: TrainGpt, then: impl Then<Predict, GptSettings>) -> Result<ExitCode> {
    let model_options = [
        ("--model", arguments.model.is_some()),
        ("--context", arguments.context.is_some()),
        ("--tokenizer", arguments.tokenizer.is_some()),
        ("--dropout", arguments.dropout.is_some()),
    ];
    refuse_changes(&arguments.run, &model_options)?;
    let file = settings_file(&arguments.run)?;
    let file = file.as_deref().map(|path| anyhow::Ok((path, read(path)?))).transpose()?;

    let named = arguments.run.data.is_some() || data_of(file.as_ref()).is_some();
    let mut recipe = if named { recipe() } else { fixture_recipe() };
    let in_file =
        |key: &str| file.as_ref().is_some_and(|(_, table)| table.get("run").is_some_and(|run| run.get(key).is_some()));
    if arguments.run.epochs.is_some() || in_file("epochs") {
        recipe.run.max_steps = None; // whole epochs were asked for
    }
    let defaults = arguments.run.resume.is_none().then_some(&recipe);

    let mut overlay = arguments.run.overlay();
    if let Some(name) = &arguments.model {
        let named = GptConfig::named(name, 1, 1)?;
        overlay.set("model", "layers", Some(named.layers as i64));
        overlay.set("model", "heads", Some(named.heads as i64));
        overlay.set("model", "width", Some(named.width as i64));
    }
    overlay.set("model", "context", arguments.context.map(i64::from));
    overlay.set("model", "dropout", arguments.dropout);
    if let Some(directory) = &arguments.tokenizer {
        overlay.set("text", "tokenizer", Some(toml::Table::from_iter([bpe(directory)])));
        overlay.set("model", "vocab", Some(Tokenizer::bpe(directory)?.vocab() as i64));
    }
    let mut settings: GptSettings = resolve(defaults, file, overlay)?;
    let (tokenizer, task) = task(&settings)?;
    let data = open(&settings, &tokenizer)?;
    settings.run.clamp(data.train.len());
    let device = crate::device::open(&settings.run.device)?;
    let model = settings.model.clone();
    let run = Run {
        name: "gpt",
        task,
        classes: vec![],
        data: loaders(data, &settings.run)?,
        optimizer: settings.optimizer,
        schedule: settings.schedule,
        settings,
    };
    then(run, &device, &arguments.run, &|device: &Device| model.init(device))
}

fn bpe(directory: &Path) -> (String, toml::Value) {
    ("bpe".to_owned(), absolute(directory).into())
}
