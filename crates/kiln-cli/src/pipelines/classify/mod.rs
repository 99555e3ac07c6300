//! The data of an image classifier, and its run.

mod class_counts;
mod predictions;
mod settings;
mod task;

use std::path::Path;

use anyhow::Result;
use burn::tensor::Device;
use kiln_data::{DecodeOptions, ImageBatch, ImageSet, Loader, Mix, Order, Remainder, TrainTest, Transform};
use kiln_models::ClassifierConfig;
use kiln_training::InitialValues;

use crate::pipelines::run::{Run, Setup};
use crate::pipelines::teacher::TeacherModel;
use crate::usage::Usage;
use crate::{device, fixtures};
use settings::about_files;

pub use class_counts::ClassCounts;
pub use settings::{ClassifySettings, DEFAULT, ImageSettings, Images, Network, fixture_recipe, recipe};
pub use task::{Classify, classify, classify_for_planning, normalization};

/// Bytes of batches that wait on the device. One batch may always wait.
const UPLOAD_BYTES: u64 = 64 << 20;

/// Batches of a data set's two parts.
fn loaders(
    data: TrainTest<ImageSet>,
    settings: &ClassifySettings,
    device: &Device,
) -> Result<TrainTest<Loader<ImageBatch>>> {
    let (run, images) = (&settings.run, &settings.data.images);
    let transform = Transform::training(images.size, images.min_area).with_random_erasing(images.erase);
    let mix = Mix::none().with_mixup(images.mixup).with_cutmix(images.cutmix);
    let (set, seed) = (data.train, run.seed);
    let config = run
        .loader(set.len())
        .with_order(Order::Shuffled { seed })
        .with_replica(run.replica)
        .with_remainder(Remainder::Drop);
    let mut train =
        ImageBatch::mixed_loader(set.clone(), transform, mix, seed, config.with_batch_size(run.batch_size))?;
    if run.device == "flex" {
        // The loader's images share the predicted memory. Their headers give a close bound.
        train = train.with_largest_image(set.largest_decode_bytes(&transform)?);
    } else {
        // The next batch is copied while a step computes. On the CPU device the host is the device, so that no copy is needed.
        let device = device.clone().autodiff();
        train = train.with_device_prefetch(UPLOAD_BYTES, move |batch| Ok(batch.upload(&device)));
    }
    Ok(TrainTest { train, test: test_loader(data.test, settings)? })
}

/// The images in the model's format: decoded as the settings say, and with the model's number of channels.
pub fn decoded(set: ImageSet, settings: &ClassifySettings) -> ImageSet {
    let set = set.with_decode_options(decode_options(settings));
    // A number of channels that the images cannot have is refused later, with the other contradictions.
    set.clone().with_channels(settings.model.channels()).unwrap_or(set)
}

/// Batches of the part for evaluation, [`decoded`] as the settings say.
///
/// # Errors
/// Those of the loader.
pub fn test_loader(set: ImageSet, settings: &ClassifySettings) -> Result<Loader<ImageBatch>> {
    let transform = Transform::evaluation(settings.data.images.size);
    let config = settings.run.loader(set.len());
    Ok(ImageBatch::loader(set, transform, 0, config)?)
}

/// Opens the data set that the settings name, or the fixture if they name none.
///
/// # Errors
/// Those of [`kiln_data::open_images`].
pub fn open(data: Option<&Path>) -> Result<TrainTest<ImageSet>> {
    Ok(match data {
        Some(path) => kiln_data::open_images(path)?,
        None => {
            let instead = "data/fashion-mnist after `kiln fetch fashion-mnist`";
            kiln_data::open_images(fixtures::data_set("fashion-mnist", instead)?)?
        }
    })
}

/// Fails if the configuration contradicts the data, and for sizes that the model cannot take.
///
/// # Errors
/// [`Usage`] with the value and what would be accepted.
pub fn check_against(data: &ImageSet, settings: &ClassifySettings) -> Result<()> {
    let model = &settings.model;
    for (what, configured, found) in
        [("classes", model.classes(), data.classes().len()), ("channels", model.channels(), data.channels())]
    {
        if configured != found {
            let text = format!("model.{what} is {configured}, expected {found} as in the data set");
            return Err(Usage(text).into());
        }
    }
    model.check_input([settings.data.images.size; 2])?;
    Ok(())
}

/// How images are decoded.
pub fn decode_options(settings: &ClassifySettings) -> DecodeOptions {
    let images = &settings.data.images;
    DecodeOptions::new().with_quality(images.decode).with_damage(images.damaged_images)
}

/// The run of the settings on `data`, and its device.
///
/// # Errors
/// Those of the device, the data and the settings.
pub fn run(mut settings: ClassifySettings, data: TrainTest<ImageSet>) -> Result<(Run<Classify>, Device)> {
    let data = TrainTest { train: decoded(data.train, &settings), test: decoded(data.test, &settings) };
    check_against(&data.train, &settings)?;
    settings.run.fit_batch(data.train.len())?;
    let device = device::open(settings.run.own_device())?;
    let size = settings.data.images.size;
    let compared = |own: &ClassifySettings| {
        own.model.check_input([size; 2])?;
        let of = |model: &ClassifierConfig| [("classes", model.classes()), ("channels", model.channels())];
        let [teacher, student] = [of(&own.model), of(&settings.model)];
        Ok([0, 1].map(|i| (teacher[i].0, teacher[i].1, student[i].1)))
    };
    let teacher = TeacherModel::open::<Classify, _>(&settings, &device, compared, |own| {
        let config = own.model.clone();
        move |device: &Device| config.init(device)
    })?;
    let task = classify(&settings)?.weighing_classes(&data.test).taught(teacher);
    let findings = predictions::finder(data.test.clone(), size);
    let (classes, class_counts) = (data.train.classes().to_vec(), Some(ClassCounts::of(&data)));
    let notes = about_files(&data.train, &settings);
    let (model, loaders) = (settings.model.clone(), loaders(data, &settings, &device)?);
    let setup = Setup { classes, class_counts, notes, ..Setup::new(family(&model), loaders, settings) };
    Ok((Run::new(task, move |device| model.init(device), InitialValues::default(), findings, setup), device))
}

/// The prefix of run directories' names.
fn family(model: &ClassifierConfig) -> &'static str {
    match model {
        ClassifierConfig::ResNet(_) => "resnet",
        ClassifierConfig::Vit(_) => "vit",
        other => other.name(),
    }
}
