//! A folder of images for burn's own `Learner`: images of any size and format are decoded at the required size on two threads, within 64
//! MiB, in an order that follows from the seed. Files that are not images are skipped and reported.
//!
//! `cargo run --package examples --bin folder -- DIR`, with a directory per class in DIR. Without DIR it first writes the images of
//! `fixtures/fashion-mnist` and one file that is not an image to a temporary folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use burn::data::dataloader::DataLoader;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};
use kiln_data::{BadSamples, BurnLoader, ImageBatch, ImageSet, Loader, LoaderConfig, Normalize, Order, Transform};
use kiln_data::{TrainTest, open_images};
use kiln_models::{ResNet, ResNetConfig};

const SEED: u64 = 1;
/// Pixels per side that the network sees.
const SIZE: usize = 28;
/// Images of each class that are written without DIR.
const EACH: usize = 100;

/// Normalised images `[B, C, H, W]` and labels `[B]`.
type Images = (Tensor<4>, Tensor<1, Int>);

#[derive(Module, Debug)]
struct Classifier {
    net: ResNet,
}

impl TrainStep for Classifier {
    type Input = Images;
    type Output = ClassificationOutput;

    fn step(&self, batch: Images) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = Images;
    type Output = ClassificationOutput;

    fn step(&self, (images_bchw, labels_b): Images) -> ClassificationOutput {
        let logits_bc = self.net.forward(images_bchw);
        let loss = CrossEntropyLossConfig::new().init(&logits_bc.device());
        ClassificationOutput::new(loss.forward(logits_bc.clone(), labels_b.clone()), logits_bc, labels_b)
    }
}

fn loader(set: ImageSet, transform: Transform, order: Order) -> Result<Loader<ImageBatch>> {
    let bad_samples = BadSamples::skip(set.len() / 100 + 1);
    let config =
        LoaderConfig::new(32).with_order(order).with_workers(2).with_budget(64 << 20).with_bad_samples(bad_samples);
    Ok(ImageBatch::loader(set, transform, SEED, config)?)
}

/// Makes a loader for the learner, which sets the device of its model.
fn for_burn(loader: &Loader<ImageBatch>) -> Arc<dyn DataLoader<Images>> {
    let normalize = Normalize::for_channels(3);
    Arc::new(BurnLoader::new(loader.clone(), &Device::flex(), move |batch, device| batch.to_device(&normalize, device)))
}

/// Some of the fixture's images as PNG files, a directory per class, and a text file with the name of an image.
fn write_folder(root: &Path) -> Result<()> {
    let set = open_images(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/fashion-mnist"))?.train;
    let mut written = vec![0; set.classes().len()];
    for id in 0..set.len() {
        let (label, number) = (set.label(id), written[set.label(id)]);
        if number < EACH {
            let directory = root.join(set.classes()[label].replace('/', "-"));
            fs::create_dir_all(&directory)?;
            let image = set.load(id)?.image;
            let gray = image::GrayImage::from_raw(image.width as u32, image.height as u32, image.pixels);
            gray.context("the fixture's images are gray")?.save(directory.join(format!("{number:04}.png")))?;
            written[label] += 1;
        }
    }
    let first = fs::read_dir(root)?.next().context("the fixture has a class")??;
    Ok(fs::write(first.path().join("notes.jpg"), "no image at all")?)
}

fn main() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("kiln-folder-{}", std::process::id()));
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let root = given.clone().unwrap_or_else(|| scratch.join("images"));
    if given.is_none() {
        write_folder(&root)?;
    }
    let device = Device::flex().autodiff();
    device.seed(SEED);
    let TrainTest { train, test } = open_images(&root)?;
    let net = ResNetConfig::resnet18(train.classes().len()).with_channels(train.channels()).with_width(8);
    let model = Classifier { net: net.init(&device)? };

    let train = loader(train, Transform::training(SIZE, 0.6), Order::Shuffled { seed: SEED })?;
    let test = loader(test, Transform::evaluation(SIZE), Order::Sequential)?;
    let trained = SupervisedTraining::new(scratch.join("learner"), for_burn(&train), for_burn(&test))
        .num_epochs(1)
        .metrics((LossMetric::new(), AccuracyMetric::new()))
        .with_application_logger(None)
        .launch(Learner::new(model, AdamWConfig::new().init(), 3e-3));
    ensure!(trained.error.is_none(), "the run ended early: {:?}", trained.error);

    let mut out = std::io::stdout().lock();
    writeln!(out, "training images: {}", train.stats())?;
    for report in train.bad_samples().iter().chain(&test.bad_samples()) {
        writeln!(out, "left out: {}", report.reason)?;
    }
    let left_out = train.bad_samples().len() + test.bad_samples().len();
    ensure!(given.is_some() || left_out == 1, "{left_out} files were left out, expected the one that is no image");
    Ok(fs::remove_dir_all(scratch)?) // what a failed run wrote is left for inspection
}
