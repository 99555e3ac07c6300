//! A classifier's predictions for some held-out images, for the report of its run.
// B batch, C channels or classes, H height, W width

use anyhow::{Context, Result};
use base64::Engine;
use burn::module::Module;
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device};
use image::imageops::{FilterType, resize};
use image::{ImageFormat, RgbImage};
use kiln_data::{ImageBatch, ImageSet, Normalize, Transform};
use kiln_models::Classifier;
use kiln_report::Prediction;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::pipelines::run::{Finder, Findings};

/// Images that are shown at most.
const SHOWN: usize = 12;
/// Candidates from which each next image is chosen.
const DRAWN: usize = 40;
/// Pixels of a side of a picture, at most.
const SIDE: u32 = 112;

/// Predicts the classes of some images of `set`, which are equal for all models. Images are resized to `size` pixels per side as in an
/// evaluation.
pub(super) fn finder(set: ImageSet, size: usize) -> Finder<Classifier> {
    Box::new(move |subject| {
        let Some(model) = subject.whole() else { return Ok(Findings::default()) };
        let predictions = predictions(&set, size, model, subject.device, subject.at_once)?;
        Ok(Findings { predictions, ..Findings::default() })
    })
}

fn predictions(
    set: &ImageSet,
    size: usize,
    model: &Classifier,
    device: &Device,
    most: usize,
) -> Result<Vec<Prediction>> {
    let (model, device) = (model.valid(), device.clone().inner());
    let (transform, channels) = (Transform::evaluation(size), set.channels());
    let normalize = Normalize::for_channels(channels);
    let name = |class: usize| set.classes().get(class).cloned().unwrap_or_else(|| class.to_string());
    let mut found = vec![];
    // At most as many at once as in a step, whose memory is known to be enough.
    for ids in chosen(set.len(), |id| set.label(id)).chunks(most.max(1)) {
        let (mut pixels, mut labels, mut kept) = (vec![], vec![], vec![]);
        for id in ids {
            // The evaluation has reported images that cannot be read. The transform of an evaluation draws no random numbers.
            let image = set.load(*id).and_then(|image| transform.apply(image.image, &mut StdRng::seed_from_u64(0)));
            let Ok(image) = image else { continue };
            for channel in 0..channels {
                pixels.extend(image.pixels[channel..].iter().step_by(channels));
            }
            labels.push(set.label(*id) as i64);
            kept.push(*id);
        }
        if kept.is_empty() {
            continue;
        }
        let shape = [kept.len(), channels, size, size];
        let batch = ImageBatch { pixels: pixels.into(), shape, labels, ids: kept, mixed: None };
        let (images_bchw, _) = batch.to_device(&normalize, &device);
        let probabilities_bc = softmax(model.forward(images_bchw).cast(DType::F32), 1);
        let classes = probabilities_bc.dims()[1];
        let probabilities: Vec<f32> = probabilities_bc.into_data().iter::<f32>().collect();
        for (index, row) in probabilities.chunks_exact(classes).enumerate() {
            let first = |best: usize, class: usize| if row[class] > row[best] { class } else { best };
            let predicted = (1..classes).fold(0, first);
            let image = channels * size * size;
            found.push(Prediction {
                png: picture(&batch.pixels[index * image..][..image], channels, size as u32)?,
                truth: name(batch.labels[index] as usize),
                predicted: name(predicted),
                probability: row[predicted].into(),
            });
        }
    }
    Ok(found)
}

/// Chooses samples out of `samples`, of as many classes as possible. The choice does not depend on the run.
fn chosen(samples: usize, class: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut random = StdRng::seed_from_u64(0);
    let mut chosen: Vec<usize> = vec![];
    while chosen.len() < samples.min(SHOWN) {
        let drawn = (0..DRAWN).map(|_| random.random_range(0..samples)).filter(|id| !chosen.contains(id));
        let shown = |id: &usize| chosen.iter().filter(|other| class(**other) == class(*id)).count();
        let least = drawn.min_by_key(shown).or_else(|| (0..samples).find(|id| !chosen.contains(id)));
        chosen.extend(least);
    }
    chosen
}

/// An image `[C, H, W]` of one or three channels as a PNG file in base64.
fn picture(pixels: &[u8], channels: usize, size: u32) -> Result<String> {
    let plane = (size * size) as usize;
    let at = |x: u32, y: u32, channel: usize| {
        let channel = if channels >= 3 { channel } else { 0 };
        pixels[channel * plane + (y * size + x) as usize]
    };
    let image = RgbImage::from_fn(size, size, |x, y| image::Rgb([at(x, y, 0), at(x, y, 1), at(x, y, 2)]));
    let image = if size > SIDE { resize(&image, SIDE, SIDE, FilterType::Triangle) } else { image };
    let mut png = std::io::Cursor::new(vec![]);
    image.write_to(&mut png, ImageFormat::Png).context("cannot write a picture")?;
    Ok(base64::engine::general_purpose::STANDARD.encode(png.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_all_classes_are_shown() {
        let chosen_of = |samples: usize, classes: usize| chosen(samples, |id| id % classes);
        let mut shown: Vec<usize> = chosen_of(1000, 10).iter().map(|id| id % 10).collect();
        assert_eq!(shown.len(), 12);
        shown.sort_unstable();
        shown.dedup();
        assert_eq!(shown.len(), 10);
        assert_eq!(chosen_of(1000, 10), chosen_of(1000, 10));
        let mut few = chosen_of(3, 10);
        few.sort_unstable();
        assert_eq!(few, [0, 1, 2]);
        assert!(chosen_of(0, 10).is_empty());
    }

    #[test]
    fn a_picture_has_the_colours_of_its_planes() {
        let planes = [vec![255u8; 4], vec![128; 4], vec![0; 4]].concat();
        let png = base64::engine::general_purpose::STANDARD.decode(picture(&planes, 3, 2).unwrap()).unwrap();
        let read = image::load_from_memory(&png).unwrap().to_rgb8();
        assert_eq!((read.dimensions(), read.get_pixel(1, 1).0), ((2, 2), [255, 128, 0]));
        let gray = base64::engine::general_purpose::STANDARD.decode(picture(&[7; 128 * 128], 1, 128).unwrap()).unwrap();
        let read = image::load_from_memory(&gray).unwrap().to_rgb8();
        assert_eq!((read.dimensions(), read.get_pixel(5, 5).0), ((112, 112), [7; 3]));
    }
}
