//! The crop, size, mirroring and erasing of an image.

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::decode::{Area, DecodeOptions, Image, ImageFile, RandomCrops, View};
use crate::error::Error;

use super::erase::erase;

/// Brings an image of any size to `size` x `size`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Transform {
    /// Rows and columns of the result.
    pub size: usize,
    /// The part of the image that is taken.
    pub crop: Crop,
    /// Mirror left to right with probability one half.
    pub flip: bool,
    /// Probability of overwriting a random rectangle with noise, in [0, 1]: 2 % to a third of the area, with an aspect ratio from 0.3 to
    /// 3.3 (random erasing, Zhong et al. 2017, with the numbers of timm's `RandomErasing`).
    #[serde(default)]
    pub erase: f64,
}

/// The longest side: image formats hardly exceed it, and no product of sides overflows.
const MOST_PIXELS: usize = 65_535;

/// The part of an image that is taken before it is resized.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Crop {
    /// The whole image, resized to a square.
    Whole,
    /// The square in the middle whose side is this fraction of the shorter side, in (0, 1].
    /// 0.875 is torchvision's "resize to 256, take the middle 224".
    Center(f64),
    /// A random part of at least this fraction of the area, in (0, 1], with an aspect ratio from 3/4 to 4/3
    /// (torchvision's `RandomResizedCrop`; 0.08 is its default, from Szegedy et al. 2014, section 6).
    Random(f64),
}

impl Transform {
    /// A transform that resizes the whole image to `size` x `size`, without mirroring.
    pub const fn new(size: usize) -> Self {
        Self { size, crop: Crop::Whole, flip: false, erase: 0.0 }
    }

    /// Sets the part of the image that is taken.
    #[must_use]
    pub const fn with_crop(self, crop: Crop) -> Self {
        Self { crop, ..self }
    }

    /// Mirrors half of the images left to right, chosen at random.
    #[must_use]
    pub const fn with_random_flip(self) -> Self {
        Self { flip: true, ..self }
    }

    /// Mirrors no image.
    #[must_use]
    pub const fn without_flip(self) -> Self {
        Self { flip: false, ..self }
    }

    /// Overwrites a random rectangle with noise, with this probability; see [`erase`](Self::erase). Touvron et al. 2020 train DeiT with
    /// 0.25.
    #[must_use]
    pub const fn with_random_erasing(self, probability: f64) -> Self {
        Self { erase: probability, ..self }
    }

    /// A transform for evaluation: the square in the middle of the image, all of its shorter side when `size` is below 64.
    pub fn evaluation(size: usize) -> Self {
        let fraction = if size < 64 { 1.0 } else { 0.875 };
        Self { size, crop: Crop::Center(fraction), flip: false, erase: 0.0 }
    }

    /// A transform for training: a random part of at least `min_area` of the image, mirrored half the time.
    pub fn training(size: usize, min_area: f64) -> Self {
        Self { size, crop: Crop::Random(min_area), flip: true, erase: 0.0 }
    }

    /// Checks the settings once, so that [`apply`](Self::apply) does not.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a size of 0 or above 65,535, a fraction outside of (0, 1], or a
    /// probability outside of [0, 1].
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=MOST_PIXELS).contains(&self.size) {
            return Err(Error::setting("image size", self.size.to_string(), "from 1 to 65535"));
        }
        if let Crop::Center(fraction) | Crop::Random(fraction) = self.crop
            && !(fraction > 0.0 && fraction <= 1.0)
        {
            return Err(Error::setting("crop", fraction.to_string(), "a fraction above 0, at most 1"));
        }
        if !(0.0..=1.0).contains(&self.erase) {
            return Err(Error::setting("erase", self.erase.to_string(), "a probability in [0, 1]"));
        }
        Ok(())
    }

    /// The view of an image of `height` rows and `width` columns; random choices come from `rng` alone.
    pub fn view(&self, height: usize, width: usize, rng: &mut impl Rng) -> View {
        let area = match self.crop {
            Crop::Whole => Area::whole(height, width),
            Crop::Center(fraction) => center(height, width, fraction),
            Crop::Random(min_area) => random_area(height, width, min_area, rng),
        };
        View { area, height: self.size, width: self.size, flip: self.flip && rng.random::<bool>() }
    }

    /// An upper bound of the bytes that decoding `file` for this transform takes, whatever the random choices. 0 for a
    /// file that always takes more than the limit of `options` and is not decoded.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for channels other than 1 or 3.
    pub fn decode_bytes(&self, file: &ImageFile, channels: usize, options: &DecodeOptions) -> Result<u64, Error> {
        let [height, width] = [file.header().height, file.header().width];
        let area = match self.crop {
            Crop::Whole => Area::whole(height, width),
            Crop::Center(fraction) => center(height, width, fraction),
            Crop::Random(min_area) => {
                let crops = RandomCrops { min_area, target: self.size, flip: self.flip };
                return Ok(file.random_crop_bytes(&crops, channels, options));
            }
        };
        // Mirroring takes a copy, which may not fit the limit, so that another way is planned.
        let bytes = |flip| match file.plan(&View { area, height: self.size, width: self.size, flip }, channels, options)
        {
            Ok(plan) => Ok(plan.bytes()),
            Err(Error::TooLarge { .. }) => Ok(0),
            Err(other) => Err(other),
        };
        Ok(bytes(false)?.max(bytes(self.flip)?))
    }

    /// Transforms an image in memory: cuts out its [`view`](Self::view), and overwrites a rectangle with noise if one is drawn.
    ///
    /// # Errors
    /// Those of [`View::apply`].
    pub fn apply(&self, image: Image, rng: &mut impl Rng) -> Result<Image, Error> {
        let image = self.view(image.height, image.width, rng).apply(image)?;
        Ok(self.erased(image, rng))
    }

    /// Overwrites a rectangle of the image with noise if the numbers of `rng` say so. This is the last step of a transform.
    pub(super) fn erased(&self, mut image: Image, rng: &mut impl Rng) -> Image {
        if self.erase > 0.0 && rng.random::<f64>() < self.erase {
            erase(&mut image, rng);
        }
        image
    }
}

fn center(height: usize, width: usize, fraction: f64) -> Area {
    let side = height.min(width) as f64 * fraction;
    Area { left: (width as f64 - side) / 2.0, top: (height as f64 - side) / 2.0, width: side, height: side }
}

/// torchvision's search: ten tries; then, unlike torchvision's, the largest square in the middle.
fn random_area(height: usize, width: usize, min_area: f64, rng: &mut impl Rng) -> Area {
    let (rows, columns) = (height as f64, width as f64);
    for _ in 0..10 {
        let area = rows * columns * rng.random_range(min_area..=1.0);
        let ratio: f64 = rng.random_range((3f64 / 4.0).ln()..=(4f64 / 3.0).ln()).exp();
        let (w, h) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if w >= 1.0 && h >= 1.0 && w <= columns && h <= rows {
            let left = rng.random_range(0..=(columns - w) as usize) as f64;
            let top = rng.random_range(0..=(rows - h) as usize) as f64;
            return Area { left, top, width: w, height: h };
        }
    }
    center(height, width, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::sample_rng;
    use proptest::prelude::*;

    fn gradient(height: usize, width: usize, channels: usize) -> Image {
        let pixels = (0..height * width * channels).map(|i| (i * 7 % 251) as u8).collect();
        Image { pixels, height, width, channels }
    }

    proptest! {
        #[test]
        fn any_image_becomes_the_size_asked_for(
            height in 1usize..60, width in 1usize..60, rgb: bool, size in 1usize..40, min in 0.05f64..1.0, seed: u64,
        ) {
            let image = gradient(height, width, if rgb { 3 } else { 1 });
            let channels = image.channels;
            let out = Transform::training(size, min).apply(image, &mut sample_rng(seed, 0, 0)).unwrap();
            prop_assert_eq!([out.height, out.width, out.channels], [size, size, channels]);
            prop_assert_eq!(out.pixels.len(), size * size * channels);
        }

        #[test]
        fn random_areas_lie_inside_and_are_large_enough(height in 8usize..200, width in 8usize..200, seed: u64) {
            let area = random_area(height, width, 0.3, &mut sample_rng(seed, 1, 2));
            prop_assert!(area.left >= 0.0 && area.left + area.width <= width as f64);
            prop_assert!(area.top >= 0.0 && area.top + area.height <= height as f64);
            // Rounding to whole pixels and the square fallback of long images may take a little.
            let fallback = (height.min(width) as f64).powi(2);
            let least = (0.3 * (height * width) as f64).min(fallback);
            prop_assert!(area.width * area.height >= 0.8 * least);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_picture() {
        let apply = |seed| {
            let mut rng = sample_rng(seed, 5, 6);
            Transform::training(16, 0.2).apply(gradient(40, 30, 3), &mut rng).unwrap()
        };
        assert_eq!(apply(1), apply(1));
        assert_ne!(apply(1), apply(2));
    }

    #[test]
    fn evaluation_leaves_an_image_of_the_right_size_alone() {
        let image = gradient(28, 28, 1);
        assert_eq!(Transform::evaluation(28).apply(image.clone(), &mut sample_rng(0, 0, 0)).unwrap(), image);
    }

    #[test]
    fn flipping_mirrors_pixels_and_keeps_their_colours() {
        let transform = Transform { size: 2, crop: Crop::Center(1.0), flip: true, erase: 0.0 };
        let image = Image { pixels: vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], height: 2, width: 2, channels: 3 };
        let outcomes: Vec<Vec<u8>> =
            (0..20).map(|id| transform.apply(image.clone(), &mut sample_rng(0, 0, id)).unwrap().pixels).collect();
        let mirrored = vec![4, 5, 6, 1, 2, 3, 10, 11, 12, 7, 8, 9];
        assert!(outcomes.contains(&image.pixels) && outcomes.contains(&mirrored));
        assert!(outcomes.iter().all(|pixels| *pixels == image.pixels || *pixels == mirrored));
    }

    #[test]
    fn images_are_erased_as_often_as_asked_for_and_nothing_else_changes() {
        let plain = Transform::training(16, 0.2);
        let erased = |probability| {
            let transform = plain.with_random_erasing(probability);
            let apply =
                |transform: Transform, id| transform.apply(gradient(40, 30, 3), &mut sample_rng(1, 2, id)).unwrap();
            (0..400).filter(|id| apply(transform, *id) != apply(plain, *id)).count()
        };
        assert_eq!((erased(0.0), erased(1.0)), (0, 400));
        assert!((70..130).contains(&erased(0.25)), "{}", erased(0.25));
    }

    #[test]
    fn impossible_settings_are_refused() {
        let erasing = Transform::training(8, 0.5).with_random_erasing(1.1);
        for transform in [Transform::evaluation(0), Transform::training(8, 0.0), Transform::training(8, 1.5), erasing] {
            assert!(matches!(transform.check(), Err(Error::InvalidSetting { .. })));
        }
    }
}
