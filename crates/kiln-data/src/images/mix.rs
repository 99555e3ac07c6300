//! Mixup and CutMix: images of a batch that are mixed with each other, and their second labels.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{Rng, RngExt};
use rand_distr::{Beta, Distribution};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::order::batch_rng;

/// Mixes the images of a training batch with each other: image `i` of `n` with image `n - 1 - i`.
///
/// One share `lambda` is drawn for a batch, from Beta(alpha, alpha). Mixup (Zhang et al. 2017) makes the weighted mean of both images,
/// rounded to 8 bits. CutMix (Yun et al. 2019) replaces a box of the image by the same box of the other one; `lambda` is then the share of
/// the image outside of the box. If both are on, each batch takes one of them with probability one half. These are the rules of timm's
/// `Mixup` in its mode `batch`.
///
/// The share, the box and the kind are a function of (seed, epoch, batch). A mixed batch is an
/// [`ImageBatch`](crate::ImageBatch) with [`MixedLabels`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Mix {
    /// Alpha of mixup, from 0 (off) to 100. Touvron et al. 2020 train DeiT with 0.8.
    pub mixup: f64,
    /// Alpha of CutMix, from 0 (off) to 100. Touvron et al. 2020 train DeiT with 1.
    pub cutmix: f64,
}

/// The second labels of a batch whose images were mixed. The loss of a sample is `lambda` times the loss with its own label, plus
/// `1 - lambda` times the loss with this one.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedLabels {
    /// `B` class indices: those of the images that were mixed in.
    pub labels: Vec<i64>,
    /// The share of the sample's own image, in [0, 1], the same for the whole batch.
    pub lambda: f64,
}

/// How the images of one batch are mixed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mixing {
    /// The weighted mean with this share of the own image.
    Mean(f64),
    /// Rows and columns are exchanged with those of the other image.
    Exchange([Range<usize>; 2]),
}

impl Mix {
    /// Settings that mix nothing.
    pub const fn none() -> Self {
        Self { mixup: 0.0, cutmix: 0.0 }
    }

    /// Turns mixup on with this alpha, from 0 (off) to 100.
    #[must_use]
    pub const fn with_mixup(self, alpha: f64) -> Self {
        Self { mixup: alpha, ..self }
    }

    /// Turns CutMix on with this alpha, from 0 (off) to 100.
    #[must_use]
    pub const fn with_cutmix(self, alpha: f64) -> Self {
        Self { cutmix: alpha, ..self }
    }

    /// Whether nothing is mixed.
    pub fn is_none(&self) -> bool {
        self.mixup == 0.0 && self.cutmix == 0.0
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for an alpha outside of 0 to 100.
    pub fn check(&self) -> Result<(), Error> {
        for (field, alpha) in [("mixup", self.mixup), ("cutmix", self.cutmix)] {
            if !(0.0..=100.0).contains(&alpha) {
                let expected = "a number from 0 (off) to 100";
                return Err(Error::InvalidSetting { name: field, value: alpha.to_string(), expected });
            }
        }
        Ok(())
    }

    /// How batch `index` of `epoch`, of images of `[height, width]` pixels, is mixed; none when mixing is off.
    pub(super) fn decide(&self, seed: u64, [epoch, index]: [u64; 2], size: [usize; 2]) -> Option<Mixing> {
        let rng = &mut batch_rng(seed, epoch, index);
        let exchange = match (self.mixup > 0.0, self.cutmix > 0.0) {
            (false, false) => return None,
            (true, true) => rng.random::<bool>(),
            (_, cutmix) => cutmix,
        };
        Some(match exchange {
            false => Mixing::Mean(share(self.mixup, rng)),
            true => Mixing::Exchange(cut(share(self.cutmix, rng), size, rng)),
        })
    }
}

/// A number in [0, 1] from Beta(alpha, alpha).
fn share(alpha: f64, rng: &mut impl Rng) -> f64 {
    let drawn = Beta::new(alpha, alpha).map_or(1.0, |beta| beta.sample(rng));
    // An alpha close to 0 makes numbers that cannot be represented; a share is then 0 or 1.
    if drawn.is_nan() { 1.0 } else { drawn.clamp(0.0, 1.0) }
}

/// A box around a random pixel with `1 - lambda` of the image's area, without the part that lies outside of the image.
fn cut(lambda: f64, size: [usize; 2], rng: &mut impl Rng) -> [Range<usize>; 2] {
    let ratio = (1.0 - lambda).sqrt();
    size.map(|side| {
        let half = (side as f64 * ratio) as usize / 2;
        let center = rng.random_range(0..side.max(1));
        center.saturating_sub(half)..(center + half).min(side)
    })
}

impl Mixing {
    /// The share of the own image in a sample of `[height, width]` pixels.
    pub(super) fn lambda(&self, [height, width]: [usize; 2]) -> f64 {
        match self {
            Self::Mean(lambda) => *lambda,
            Self::Exchange([rows, columns]) => 1.0 - (rows.len() * columns.len()) as f64 / (height * width) as f64,
        }
    }

    /// Mixes the images `[B, C, H, W]` in place. With an odd number of images, the one in the middle keeps its pixels.
    pub(super) fn apply(&self, pixels: &mut [u8], [b, c, h, w]: [usize; 4]) {
        let image = c * h * w;
        for first in 0..b / 2 {
            let (before, after) = pixels.split_at_mut((b - 1 - first) * image);
            let (one, other) = (&mut before[first * image..][..image], &mut after[..image]);
            match self {
                Self::Mean(lambda) => mean(*lambda as f32, one, other),
                Self::Exchange([rows, columns]) => {
                    for row in (0..c).flat_map(|channel| rows.clone().map(move |row| channel * h + row)) {
                        let part = row * w + columns.start..row * w + columns.end;
                        one[part.clone()].swap_with_slice(&mut other[part]);
                    }
                }
            }
        }
    }
}

/// Both images become means, in which they have the share `lambda`, rounded to the nearest number.
fn mean(lambda: f32, one: &mut [u8], other: &mut [u8]) {
    let of = |a: u8, b: u8| (lambda * f32::from(a) + (1.0 - lambda) * f32::from(b) + 0.5) as u8;
    for (a, b) in one.iter_mut().zip(other) {
        (*a, *b) = (of(*a, *b), of(*b, *a));
    }
}

impl MixedLabels {
    /// The labels `[B]` on `device`.
    pub fn to_device(&self, device: &Device) -> Tensor<1, Int> {
        Tensor::from_data(TensorData::new(self.labels.clone(), [self.labels.len()]), device)
    }

    /// Those of the samples in `samples`.
    pub(super) fn slice(&self, samples: Range<usize>) -> Self {
        Self { labels: self.labels[samples].to_vec(), lambda: self.lambda }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(count: usize, seed: u64) -> Vec<u8> {
        let mut pixels = vec![0; count];
        batch_rng(seed, 8, 9).fill_bytes(&mut pixels);
        pixels
    }

    proptest! {
        #[test]
        fn every_pixel_has_the_share_that_the_labels_have(
            b in 1usize..6, c in 1usize..4, h in 1usize..20, w in 1usize..20,
            mixup in 0.0f64..3.0, cutmix in 0.01f64..3.0, seed: u64,
        ) {
            let mixing = Mix::none().with_mixup(mixup).with_cutmix(cutmix).decide(seed, [3, 4], [h, w]).unwrap();
            let lambda = mixing.lambda([h, w]);
            prop_assert!((0.0..=1.0).contains(&lambda));
            let before = noise(b * c * h * w, seed);
            let mut after = before.clone();
            mixing.apply(&mut after, [b, c, h, w]);
            let (image, mut own) = (c * h * w, 0);
            for (at, pixel) in after.iter().enumerate() {
                let (a, b) = (before[at], before[(b - 1 - at / image) * image + at % image]);
                match &mixing {
                    Mixing::Mean(lambda) => {
                        let expected = lambda * f64::from(a) + (1.0 - lambda) * f64::from(b);
                        prop_assert!((f64::from(*pixel) - expected).abs() < 0.501, "{pixel}, expected {expected}");
                    }
                    Mixing::Exchange([rows, columns]) => {
                        let inside = rows.contains(&(at / w % h)) && columns.contains(&(at % w));
                        prop_assert_eq!(*pixel, if inside { b } else { a });
                        own += usize::from(!inside);
                    }
                }
            }
            if let Mixing::Exchange(_) = mixing {
                prop_assert!((own as f64 / before.len() as f64 - lambda).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn shares_have_the_mean_and_variance_of_the_beta_distribution() {
        for alpha in [0.2, 0.8, 1.0, 5.0] {
            let of = |index| match Mix::none().with_mixup(alpha).decide(1, [2, index], [8, 8]) {
                Some(Mixing::Mean(lambda)) => lambda,
                other => panic!("{other:?}"),
            };
            let shares: Vec<f64> = (0..4000).map(of).collect();
            let mean = shares.iter().sum::<f64>() / 4000.0;
            let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / 4000.0;
            assert!((mean - 0.5).abs() < 0.03, "{alpha}: {mean}");
            assert!((variance - 0.25 / (2.0 * alpha + 1.0)).abs() < 0.01, "{alpha}: {variance}");
        }
    }

    #[test]
    fn half_of_the_batches_are_cut_when_both_are_on() {
        let both = Mix::none().with_mixup(0.8).with_cutmix(1.0);
        let cut = |index| matches!(both.decide(5, [0, index], [8, 8]), Some(Mixing::Exchange(_)));
        let share = (0..2000).filter(|index| cut(*index)).count();
        assert!((900..1100).contains(&share), "{share}");
        assert!(Mix::none().is_none() && Mix::none().decide(5, [0, 0], [8, 8]).is_none());
    }

    #[test]
    fn even_extreme_alphas_make_shares() {
        for alpha in [f64::MIN_POSITIVE, 1e-300, 1e-9, 100.0] {
            for index in 0..50 {
                let mixing = Mix::none().with_mixup(alpha).decide(0, [0, index], [4, 4]).unwrap();
                assert!((0.0..=1.0).contains(&mixing.lambda([4, 4])), "{alpha}: {mixing:?}");
            }
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        for mix in [Mix::none().with_mixup(-1.0), Mix::none().with_cutmix(f64::NAN), Mix::none().with_mixup(101.0)] {
            assert!(matches!(mix.check(), Err(Error::InvalidSetting { .. })), "{mix:?}");
        }
        Mix::none().with_mixup(0.8).with_cutmix(1.0).check().unwrap();
    }
}
