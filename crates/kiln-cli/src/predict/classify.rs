//! Predicts the classes of images, with probabilities.
// B batch, C channels, H height, W width

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use burn::tensor::{DType, Device};
use kiln_data::{BatchPlan, Error, Image, ImageBatch, ImageFile, Loader, Normalize, Transform, Worker, sample_rng};
use kiln_models::Classifier;

use super::files::images;
use super::outcome::{Printer, largest, probabilities};
use crate::cli::Predict;
use crate::device;
use crate::interrupt::Interrupt;
use crate::pipelines::classify::{decode_options, normalization};
use crate::pipelines::{ClassifySettings, load_to_evaluate};
use crate::run_directory::classes;
use crate::trained::weights;
use crate::usage::Usage;

/// An image in the model's input format, or the reason why it could not be read.
struct Loaded {
    id: usize,
    image: Result<Image, Error>,
}

pub(super) fn run(arguments: &Predict, mut settings: ClassifySettings) -> Result<ExitCode> {
    if arguments.out.is_some() {
        let text = "--out is of runs of `train segment`, which write pictures; the classes of images go to stdout";
        bail!(Usage(text.into()));
    }
    let run = &arguments.trained.run;
    settings.run.batch_size = arguments.batch_size;
    settings.model.check_input([settings.data.images.size; 2])?;
    let inputs = images(&arguments.images)?;
    let paths: Arc<[PathBuf]> = inputs.into_iter().map(|input| input.path).collect();
    let names = classes(run, settings.model.classes())?;
    let names = names.unwrap_or_else(|| (0..settings.model.classes()).map(|class| format!("class {class}")).collect());
    let device = device::open(&settings.run.device)?;
    kiln_precision::check_device(&device, settings.run.precision)?;
    let (compression, policy) = (settings.compression.as_ref(), settings.run.policy());
    let model = load_to_evaluate(settings.model.init(&device)?, compression, &policy, &weights(&arguments.trained)?)?;

    let normalize = normalization(&settings);
    let mut printer = Printer::new(arguments.json, names, Interrupt::listen()?);
    let loader = loader(paths.clone(), &settings)?;
    'batches: for batch in loader.epoch(0, 0) {
        let batch = batch?;
        let found = predict(&model, &batch, &normalize, &device)?;
        let mut found = found.chunks_exact(settings.model.classes());
        for Loaded { id, image } in &batch {
            let path = &paths[*id];
            let next = match image {
                Ok(_) => {
                    let logits = found.next().unwrap_or_default();
                    printer.image(path, "probability", &largest(probabilities(logits), arguments.top), &[])?
                }
                Err(error) => printer.failure(path, &error.to_string())?,
            };
            if next == ControlFlow::Break(()) {
                break 'batches;
            }
        }
    }
    printer.finish(paths.len())
}

/// The logits of the readable images, one after the other.
fn predict(model: &Classifier, batch: &[Loaded], normalize: &Normalize, device: &Device) -> Result<Vec<f32>> {
    let images: Vec<&Image> = batch.iter().filter_map(|loaded| loaded.image.as_ref().ok()).collect();
    let Some(first) = images.first() else { return Ok(vec![]) };
    let shape = [images.len(), first.channels, first.height, first.width];
    let mut pixels = Vec::with_capacity(shape.iter().product());
    for image in &images {
        for channel in 0..image.channels {
            pixels.extend(image.pixels.iter().skip(channel).step_by(image.channels));
        }
    }
    let (labels, ids) = (vec![0; images.len()], vec![0; images.len()]);
    let batch = ImageBatch { pixels: pixels.into(), shape, labels, ids, mixed: None };
    let (images_bchw, _) = batch.to_device(normalize, device);
    let logits = model.forward(images_bchw).cast(DType::F32);
    Ok(logits.try_into_data().context("cannot read the predictions from the device")?.iter::<f32>().collect())
}

/// Batches of the images at `paths`, in this order, cropped and resized as for an evaluation, within the loader's budget.
fn loader(paths: Arc<[PathBuf]>, settings: &ClassifySettings) -> Result<Loader<Vec<Loaded>>> {
    let transform = Transform::evaluation(settings.data.images.size);
    transform.check()?;
    let (channels, options) = (settings.model.channels(), decode_options(settings));
    let bytes_of_image = (channels * transform.size * transform.size) as u64;
    let (images, config) = (paths.len(), settings.run.loader(paths.len()));
    let load = move |id: usize, plan: &BatchPlan, worker: &Worker| -> Result<Image, Error> {
        let file = ImageFile::open(&paths[id])?;
        // The transform of an evaluation is not random.
        let view = transform.view(file.header().height, file.header().width, &mut sample_rng(0, 0, 0));
        let options = options.with_limit(options.limit.min(worker.image_limit()));
        let decoding = file.plan(&view, channels, &options)?;
        worker.within(plan, decoding.bytes(), || file.decode(&decoding))
    };
    let make = move |plan: &BatchPlan, worker: &Worker| {
        let one = |id: &usize| match load(*id, plan, worker) {
            Err(error) if !error.is_of_a_sample() => Err(error),
            image => Ok(Loaded { id: *id, image }),
        };
        plan.ids.iter().map(one).collect()
    };
    Ok(Loader::budgeted(images, config, move |plan| bytes_of_image * plan.ids.len() as u64, make)?)
}
