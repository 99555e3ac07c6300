//! Image classification with a residual network.

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Tensor};
use kiln_accumulation::Weight;
use kiln_checkpointing::{Chain, Cost, Gauge, Plan, measure};
use kiln_data::{
    BadSamples, DecodeOptions, ImageBatch, ImageSet, Loader, LoaderConfig, Normalize, Order, Quality, Remainder,
    TrainTest, Transform, open_images,
};
use kiln_memory::Recorder;
use kiln_models::{ResNet, ResNetConfig, ResNetPart, Stem};
use kiln_precision::Precision;
use kiln_training::{OptimizerConfig, ScheduleConfig, Setting, Task, top_k_correct};

use super::checkpointing::{Checkpointed, Checkpointing, plan_for};
use super::directory::CLASSES;
use super::drive::{Run, Then};
use super::settings::{ImageSettings, LoaderMemory, ResnetSettings, RunSettings, data_of, read, resolve};
use super::{refuse_changes, settings_file};
use crate::cli::TrainResnet;
use crate::fixtures;
use crate::usage::Usage;

/// Cross-entropy for learning, loss and top-1 and top-5 accuracy for measuring.
pub(crate) struct Classify {
    pub(crate) normalize: Normalize,
    pub(crate) label_smoothing: f64,
    /// How stem and blocks are run while training; the later ones when memory runs out.
    pub(crate) plans: Vec<Plan>,
}

impl Task for Classify {
    type Model = ResNet;
    type Batch = ImageBatch;

    fn samples(&self, batch: &ImageBatch) -> usize {
        batch.len()
    }

    fn weight(&self, batch: &ImageBatch) -> Weight {
        Weight::Samples(batch.len())
    }

    fn slice(&self, batch: &ImageBatch, samples: Range<usize>) -> ImageBatch {
        batch.slice(samples)
    }

    fn loss(&self, model: &ResNet, batch: &ImageBatch, device: &Device) -> Tensor<1> {
        self.loss_by(batch, device, |images_bchw| match self.plans.first() {
            Some(plan) => model.head(run(&chain(model), plan, images_bchw)),
            None => model.forward(images_bchw),
        })
    }

    fn loss_under(&self, model: &ResNet, batch: &ImageBatch, device: &Device, setting: Setting) -> Tensor<1> {
        match plan_for(&self.plans, setting) {
            Some(plan) => self.loss_by(batch, device, |images_bchw| model.head(run(&chain(model), &plan, images_bchw))),
            None => self.loss(model, batch, device),
        }
    }

    fn measure(&self, model: &ResNet, batch: &ImageBatch, device: &Device) -> Tensor<1> {
        let (images_bchw, labels_b) = batch.to_device(&self.normalize, device);
        let logits_bc = model.forward(images_bchw).cast(DType::F32);
        let mean = CrossEntropyLossConfig::new().init(device).forward(logits_bc.clone(), labels_b.clone());
        let top = |k| top_k_correct(logits_bc.clone(), labels_b.clone(), k).float();
        let count = Tensor::<1>::from_floats([batch.len() as f32], device);
        Tensor::cat(vec![count.clone(), mean * count, top(1), top(5)], 0)
    }

    fn figures(&self, sums: &[f64]) -> Vec<(&'static str, f64)> {
        let [count, loss, top1, top5] = sums else { return vec![] };
        vec![("test_accuracy", top1 / count), ("test_top5", top5 / count), ("test_loss", loss / count)]
    }
}

impl Classify {
    fn loss_by(&self, batch: &ImageBatch, device: &Device, forward: impl FnOnce(Tensor<4>) -> Tensor<2>) -> Tensor<1> {
        let (images_bchw, labels_b) = batch.to_device(&self.normalize, device);
        let smoothing = (self.label_smoothing > 0.0).then_some(self.label_smoothing as f32);
        let loss = CrossEntropyLossConfig::new().with_smoothing(smoothing).init(device);
        loss.forward(forward(images_bchw).cast(DType::F32), labels_b)
    }
}

/// Stem and blocks; none of them draws random numbers.
fn chain(model: &ResNet) -> Chain<ResNetPart> {
    Chain::new(&model.parts()).deterministic()
}

impl Checkpointed for Classify {
    fn blocks(&self, model: &ResNet) -> usize {
        chain(model).len()
    }

    fn measure_blocks(&self, model: &ResNet, batch: &ImageBatch, device: &Device, gauge: &Gauge) -> Vec<Cost> {
        let (images_bchw, _) = batch.to_device(&self.normalize, device);
        measure(&chain(model), images_bchw, ResNetPart::forward, gauge)
    }

    fn follow(&mut self, plans: Vec<Plan>) {
        self.plans = plans;
    }

    fn recorded(&self, model: &ResNet, batch: &ImageBatch, recorder: &Recorder) -> Tensor<1> {
        self.loss_by(batch, recorder.device(), |images_bchw| {
            recorder.cut();
            let x = model.parts().iter().fold(images_bchw, |x, part| {
                let x = part.forward(x);
                recorder.cut();
                x
            });
            model.head(x)
        })
    }

    fn host_bytes(&self, batch: &ImageBatch) -> u64 {
        (batch.pixels.len() + 16 * batch.labels.len()) as u64
    }

    fn repeated(&self, batch: &ImageBatch, samples: usize) -> ImageBatch {
        let [_, channels, height, width] = batch.shape;
        let first = batch.slice(0..1);
        ImageBatch {
            pixels: first.pixels.repeat(samples).into(),
            shape: [samples, channels, height, width],
            labels: first.labels.repeat(samples),
            ids: first.ids.repeat(samples),
        }
    }
}

fn run(chain: &Chain<ResNetPart>, plan: &Plan, x: Tensor<4>) -> Tensor<4> {
    // The plan was made for this chain, which captures nothing.
    chain.run(plan, x, ResNetPart::forward).unwrap_or_else(|e| panic!("{e}"))
}

/// The recipe for the data set in fixtures/: a quarter of the standard width and the stem that shrinks its input,
/// which 2 CPU cores train in about a minute.
fn fixture_recipe(data: &ImageSet) -> ResnetSettings {
    let mut recipe = recipe_for(data);
    recipe.model = recipe.model.with_width(16).with_stem(Stem::ImageNet);
    recipe.run.epochs = 12;
    recipe
}

/// The recipe for a data set of the user's: a standard ResNet-18 at the images' size.
fn recipe_for(data: &ImageSet) -> ResnetSettings {
    let size = data.size().map_or(224, |[height, width]| height.min(width));
    let stem = if size < 64 { Stem::Cifar } else { Stem::ImageNet };
    ResnetSettings {
        run: RunSettings {
            data: None,
            device: "flex".into(),
            seed: 1,
            epochs: 5,
            max_steps: None,
            batch_size: 64,
            micro_batch: None,
            precision: Precision::F32,
            checkpointing: Checkpointing::None,
            memory: None,
            clip_norm: Some(5.0),
            workers: 2,
            loader_memory: LoaderMemory::default(),
            bad_samples: BadSamples::FAIL,
            evaluate_every: 0,
            save_every: 500,
            keep: 3,
        },
        images: ImageSettings {
            size,
            decode: Quality::Fast,
            min_area: if size < 64 { 0.6 } else { 0.25 },
            label_smoothing: 0.1,
        },
        model: ResNetConfig::resnet18(data.classes().len()).with_channels(data.channels()).with_stem(stem),
        optimizer: OptimizerConfig::sgd(),
        schedule: ScheduleConfig { peak: 0.1, warmup: 0.1, floor: 0.0 },
    }
}

/// Batches of a data set's two halves.
fn loaders(
    data: TrainTest<ImageSet>,
    settings: &ResnetSettings,
    device: &Device,
) -> Result<TrainTest<Loader<ImageBatch>>> {
    let run = &settings.run;
    let transform = Transform::training(settings.images.size, settings.images.min_area);
    let (set, seed) = (decoded(data.train, settings), run.seed);
    let config = LoaderConfig { order: Order::Shuffled { seed }, remainder: Remainder::Drop, ..run.loader(set.len()) };
    let config = LoaderConfig { batch_size: run.batch_size, ..config };
    let mut train = ImageBatch::loader(set, transform, seed, config)?;
    if run.device != "flex" {
        // The next batch is copied while a step computes; on the CPU device the host is the device.
        let device = device.clone().autodiff();
        train = train.finished(UPLOAD_BYTES, move |batch| Ok(batch.upload(&device)));
    }
    Ok(TrainTest { train, test: test_loader(data.test, settings)? })
}

fn decoded(set: ImageSet, settings: &ResnetSettings) -> ImageSet {
    set.decoded(DecodeOptions { quality: settings.images.decode, ..DecodeOptions::default() })
}

/// Bytes of batches that wait on the device, one batch in any case.
const UPLOAD_BYTES: u64 = 64 << 20;

/// Batches of the half that is measured on.
pub(crate) fn test_loader(set: ImageSet, settings: &ResnetSettings) -> Result<Loader<ImageBatch>> {
    let transform = Transform::evaluation(settings.images.size);
    let config = settings.run.loader(set.len());
    Ok(ImageBatch::loader(decoded(set, settings), transform, 0, config)?)
}

/// Opens the data set that the settings name, the fixture when they name none.
pub(crate) fn open(data: Option<&Path>) -> Result<TrainTest<ImageSet>> {
    Ok(match data {
        Some(path) => open_images(path)?,
        None => open_images(fixtures::directory()?.join("fashion-mnist"))?,
    })
}

/// A configuration that contradicts the data would fail somewhere in the first step.
pub(crate) fn check_against(data: &ImageSet, model: &ResNetConfig) -> Result<()> {
    for (what, configured, found) in
        [("classes", model.classes, data.classes().len()), ("channels", model.channels, data.channels())]
    {
        if configured != found {
            bail!(Usage(format!("model.{what} is {configured}, expected {found} as in the data set")));
        }
    }
    Ok(())
}

/// The data must mean by a label what the run in `run` means, if it says so.
pub(crate) fn check_classes(run: &Path, classes: &[String]) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(run.join(CLASSES)) else { return Ok(()) };
    let known: Vec<&str> = text.lines().collect();
    if known != classes {
        bail!("the classes of the data set are {classes:?}, expected {known:?} as in '{}'", run.display());
    }
    Ok(())
}

pub(crate) fn task(settings: &ResnetSettings) -> Result<Classify> {
    let label_smoothing = settings.images.label_smoothing;
    if !(0.0..=1.0).contains(&label_smoothing) {
        bail!(Usage(format!("label smoothing is {label_smoothing}, expected a number in [0, 1]")));
    }
    Ok(Classify { normalize: Normalize::for_channels(settings.model.channels), label_smoothing, plans: vec![] })
}

/// Makes the run that the arguments describe, and hands it to `then`.
pub(crate) fn prepared(arguments: TrainResnet, then: impl Then<Classify, ResnetSettings>) -> Result<ExitCode> {
    let model_options = [
        ("--model", arguments.model.is_some()),
        ("--width", arguments.width.is_some()),
        ("--stem", arguments.stem.is_some()),
        ("--image-size", arguments.image_size.is_some()),
        ("--decode", arguments.decode.is_some()),
        ("--label-smoothing", arguments.label_smoothing.is_some()),
    ];
    refuse_changes(&arguments.run, &model_options)?;
    let file = settings_file(&arguments.run)?;
    let file = file.as_deref().map(|path| anyhow::Ok((path, read(path)?))).transpose()?;
    let mut overlay = arguments.run.overlay();
    if let Some(name) = &arguments.model {
        ResNetConfig::named(name, 1)?; // lists the names that exist
    }
    overlay.set("model", "name", arguments.model);
    overlay.set("model", "width", arguments.width.map(i64::from));
    overlay.set("model", "stem", arguments.stem);
    overlay.set("images", "size", arguments.image_size.map(i64::from));
    overlay.set("images", "decode", arguments.decode);
    overlay.set("images", "label_smoothing", arguments.label_smoothing);

    let (mut settings, data): (ResnetSettings, _) = if arguments.run.resume.is_some() {
        let settings: ResnetSettings = resolve(None, file, overlay)?;
        let data = open(settings.run.data.as_deref())?;
        (settings, data)
    } else {
        let path = arguments.run.data.clone().or_else(|| data_of(file.as_ref()));
        let data = open(path.as_deref())?;
        let recipe = if path.is_some() { recipe_for(&data.train) } else { fixture_recipe(&data.train) };
        (resolve(Some(&recipe), file, overlay)?, data)
    };
    check_against(&data.train, &settings.model)?;
    settings.run.clamp(data.train.len());
    let classes = data.train.classes().to_vec();
    if let Some(run) = &arguments.run.resume {
        check_classes(run, &classes)?;
    }
    let device = crate::device::open(&settings.run.device)?;
    let model = settings.model.clone();
    let run = Run {
        name: "resnet",
        task: task(&settings)?,
        classes,
        data: loaders(data, &settings, &device)?,
        optimizer: settings.optimizer,
        schedule: settings.schedule,
        settings,
    };
    then(run, &device, &arguments.run, &|device: &Device| model.init(device))
}
