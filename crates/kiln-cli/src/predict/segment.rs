//! Predicts the classes of the pixels of images of any size: their shares, and pictures.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use kiln_data::printable;
use kiln_training::Error;

use super::files::images;
use super::outcome::{Printer, Shares, largest};
use super::overlay::Overlay;
use crate::cli::Predict;
use crate::interrupt::Interrupt;
use crate::output::path_json;
use crate::outputs::outputs;
use crate::pipelines::SegmentSettings;
use crate::pipelines::segment::Predictor;
use crate::run_directory::classes;
use crate::trained::weights;
use crate::usage::Usage;

pub(super) fn run(arguments: &Predict, mut settings: SegmentSettings) -> Result<ExitCode> {
    let run = &arguments.trained.run;
    (settings.run.batch_size, settings.run.micro_batch) = (arguments.batch_size, None);
    let count = settings.model.classes;
    let names = classes(run, count)?.unwrap_or_else(|| (0..count).map(|class| format!("class {class}")).collect());
    let inputs = images(&arguments.images)?;
    let out = arguments.out.as_deref().map(|folder| outputs(&inputs, &[], ("--out", folder), "png")).transpose()?;
    let predictor = Predictor::open(settings, &weights(&arguments.trained)?)?;

    let mut printer = Printer::new(arguments.json, names, Interrupt::listen()?);
    for (number, input) in inputs.iter().enumerate() {
        let picture = out.as_ref().map(|pictures| pictures[number].as_path());
        let next = match shares(&predictor, &input.path, picture, printer.classes()) {
            Ok(shares) => {
                let more: Vec<_> = picture.map(|path| ("picture", path_json(path))).into_iter().collect();
                let shown: Shares = shares.into_iter().take(arguments.top).collect();
                printer.image(&input.path, "share", &shown, &more)?
            }
            Err(error) if is_of_the_image(&error) => printer.failure(&input.path, &format!("{error:#}"))?,
            Err(error) => return Err(error),
        };
        if next == ControlFlow::Break(()) {
            break;
        }
    }
    printer.finish(inputs.len())
}

/// Whether the image caused the error, so that other images can still be predicted: it cannot be read, or does not fit the model.
fn is_of_the_image(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.downcast_ref::<kiln_data::Error>().is_some_and(kiln_data::Error::is_of_a_sample)
            || matches!(cause.downcast_ref(), Some(Error::Data(error)) if error.is_of_a_sample())
    })
}

/// The share of each class in an image, the largest first. Draws the classes to `picture`.
fn shares(predictor: &Predictor, path: &Path, picture: Option<&Path>, names: &[String]) -> Result<Shares> {
    let (set, classes) = (predictor.tiles(path)?, predictor.settings.model.classes);
    let mut overlay = picture.map(|_| Overlay::new(set.grid(0).size()));
    let mut counts = vec![0u64; classes];
    predictor.rows(&set, |y, ids| {
        ids.iter().for_each(|id| counts[usize::from(*id)] += 1);
        if let Some(overlay) = &mut overlay {
            overlay.add(y, ids);
        }
        Ok(())
    })?;
    let pixels: u64 = counts.iter().sum();
    let shares = largest(counts.iter().map(|count| *count as f64 / pixels as f64), classes);
    let shares: Shares = shares.into_iter().filter(|(_, share)| *share > 0.0).collect();
    if let (Some(overlay), Some(picture)) = (overlay, picture) {
        let folder = picture.parent().ok_or_else(|| anyhow!("'{}' is in no directory", printable(&picture)))?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make '{}'", printable(&folder)))?;
        overlay.write(path, &predictor.settings.data.tiles.normalize, &shares, names, picture)?;
    }
    Ok(shares)
}
