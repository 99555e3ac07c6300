//! The default settings of a classifier's run.

use anyhow::Result;
use kiln_data::{Damage, ImageSet, Quality};
use kiln_models::{ClassifierConfig, Stem};
use kiln_training::{OptimizerConfig, ScheduleConfig};

use super::settings::{ClassifySettings, ImageSettings, RunSettings};
use crate::usage::Usage;

/// The default network.
pub const DEFAULT: &str = "resnet18";

/// The recipe for the data set in fixtures/. A ResNet has a quarter of the standard width and the stem that shrinks its input, so that 2
/// CPU cores train ResNet-18 in about a minute.
///
/// # Errors
/// Those of [`recipe_for`].
pub fn fixture_recipe(data: &ImageSet, model: &str, size: Option<usize>) -> Result<ClassifySettings> {
    let mut recipe = recipe_for(data, model, size)?;
    if let ClassifierConfig::ResNet(config) = recipe.model {
        recipe.model = ClassifierConfig::ResNet(config.with_width(16).with_stem(Stem::ImageNet));
    }
    recipe.run.epochs = 12;
    Ok(recipe)
}

/// The recipe for a data set of the user's: the network called `model` on images of `size` pixels per side. The default size is 224, or
/// the size of the images if they are smaller than 64 pixels. Convolutional networks are trained with SGD, vision transformers with
/// AdamW.
///
/// # Errors
/// [`Usage`] for an unknown name.
pub fn recipe_for(data: &ImageSet, model: &str, size: Option<usize>) -> Result<ClassifySettings> {
    let size = size.unwrap_or_else(|| training_size(data));
    let model = ClassifierConfig::named(model, data.classes().len()).map_err(|error| Usage(error.to_string()))?;
    let (optimizer, peak) = match model {
        ClassifierConfig::Vit(_) => (OptimizerConfig::adamw(), 1e-3),
        _ => (OptimizerConfig::sgd(), 0.1),
    };
    Ok(ClassifySettings {
        run: RunSettings::new(5, 64),
        images: ImageSettings {
            size,
            decode: Quality::Fast,
            damaged_images: Damage::Repair,
            min_area: if size < 64 { 0.6 } else { 0.25 },
            label_smoothing: 0.1,
            mixup: 0.0,
            cutmix: 0.0,
            erase: 0.0,
        },
        model: model.for_images(size, data.channels()),
        optimizer,
        schedule: ScheduleConfig { peak, warmup: 0.1, floor: 0.0 },
        compression: None,
    })
}

/// Number of files whose headers are read to find the image size of a data set.
const LOOKED_AT: usize = 64;
/// The size for which most networks were made.
const USUAL: usize = 224;
/// Images with fewer pixels per side are trained at their own size: enlarging them adds no detail.
const SMALL: usize = 64;

/// The default size that images of a data set are resized to: their own if they are in memory or small, else 224.
fn training_size(data: &ImageSet) -> usize {
    match data.size() {
        Some([height, width]) => height.min(width),
        None => size_for(data.some_headers(LOOKED_AT).iter().map(|header| header.height.min(header.width)).collect()),
    }
}

/// The size for files with the shorter sides `sides`. Small images get their median as a multiple of 4, for the patches of vision
/// transformers.
fn size_for(mut sides: Vec<usize>) -> usize {
    sides.sort_unstable();
    match sides.get(sides.len() / 2) {
        Some(median) if *median < SMALL => (median / 4 * 4).max(8),
        _ => USUAL,
    }
}

/// Lines about size and colours of image files at the start of a run, if the user may expect others.
pub(super) fn about_files(data: &ImageSet, settings: &ClassifySettings) -> Vec<String> {
    let headers = data.some_headers(LOOKED_AT);
    let (mut lines, size) = (vec![], settings.images.size);
    if !headers.is_empty() && size < SMALL {
        lines.push(format!("images: trained at {size} x {size} pixels (--image-size)"));
    }
    if !headers.is_empty() && data.channels() == 3 && headers.iter().all(|header| header.channels == 1) {
        lines.push("gray images, trained as RGB (--channels 1 trains them as gray)".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::size_for;

    #[test]
    fn small_files_are_trained_at_their_own_size() {
        assert_eq!(size_for(vec![28; 5]), 28);
        assert_eq!(size_for(vec![400, 30, 33]), 32);
        assert_eq!(size_for(vec![3]), 8);
        assert_eq!(size_for(vec![64, 500, 375]), 224);
        assert_eq!(size_for(vec![]), 224);
    }
}
