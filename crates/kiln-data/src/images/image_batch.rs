//! A batch of images on the host, and its normalised copy on a device.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::decode::Image;
use crate::error::Error;
use crate::loader::{BatchPlan, Loader, LoaderConfig, Stage, Worker};
use crate::order::sample_rng;

use super::image_set::ImageSet;
use super::mix::{Mix, MixedLabels};
use super::pixels::Pixels;
use super::transform::Transform;

/// A batch of equally large images on the host, 8 bits a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageBatch {
    /// Samples `[B, C, H, W]`, flat.
    pub pixels: Pixels,
    /// `[B, C, H, W]`.
    pub shape: [usize; 4],
    /// `B` class indices.
    pub labels: Vec<i64>,
    /// `B` sample ids, for records of what was trained.
    pub ids: Vec<usize>,
    /// The second labels, if the images were mixed with each other ([`mixed_loader`](Self::mixed_loader)).
    pub mixed: Option<MixedLabels>,
}

impl ImageBatch {
    /// A loader of image batches: the images of `set`, transformed. Random choices are a function of (`seed`, epoch, sample) alone.
    ///
    /// For a set of files, [`Loader::peak_bytes`] is tight after
    /// [`with_largest_image`](Loader::with_largest_image) with [`ImageSet::largest_decode_bytes`].
    ///
    /// # Errors
    /// Those of [`Transform::check`] and [`Loader::budgeted`].
    pub fn loader(set: ImageSet, transform: Transform, seed: u64, config: LoaderConfig) -> Result<Loader<Self>, Error> {
        Self::mixed_loader(set, transform, Mix::none(), seed, config)
    }

    /// [`loader`](Self::loader) of images that are mixed with each other, as `mix` says (mixup, CutMix). The random choices about a batch
    /// are a function of (`seed`, epoch, batch). All batches have [`mixed`](Self::mixed) labels, unless `mix` is none.
    ///
    /// # Errors
    /// Those of [`Transform::check`], [`Mix::check`] and [`Loader::budgeted`].
    pub fn mixed_loader(
        set: ImageSet,
        transform: Transform,
        mix: Mix,
        seed: u64,
        config: LoaderConfig,
    ) -> Result<Loader<Self>, Error> {
        transform.check()?;
        mix.check()?;
        // One or two labels and an id beside the pixels.
        let beside = if mix.is_none() { 16 } else { 24 };
        let sample = (set.channels() * transform.size * transform.size + beside) as u64;
        let bytes = move |plan: &BatchPlan| sample * plan.ids.len() as u64;
        let (samples, in_memory) = (set.len(), set.size().is_some());
        let load = move |plan: &BatchPlan, worker: &Worker| {
            let batch = Self::load(&set, &transform, seed, plan, worker)?;
            Ok(worker.timed(Stage::Assemble, || batch.mix(&mix, seed, plan)))
        };
        let loader = Loader::budgeted(samples, config, bytes, load)?;
        Ok(if in_memory { loader.with_largest_image(0) } else { loader })
    }

    /// Loads, transforms and packs the samples of `plan`, straight into one buffer.
    ///
    /// # Errors
    /// Those of [`Worker::sample`] and [`Worker::within`]; [`Error::NothingLeft`] when no sample could be read.
    pub fn load(
        set: &ImageSet,
        transform: &Transform,
        seed: u64,
        plan: &BatchPlan,
        worker: &Worker,
    ) -> Result<Self, Error> {
        let (channels, size) = (set.channels(), transform.size);
        let image = channels * size * size;
        let mut pixels = Vec::with_capacity(plan.ids.len() * image);
        let (mut labels, mut ids) = (Vec::with_capacity(plan.ids.len()), Vec::with_capacity(plan.ids.len()));
        for id in &plan.ids {
            let load = |id| {
                let rng = &mut sample_rng(seed, plan.epoch, id as u64);
                Ok((id, set.view(id, transform, rng, plan, worker)?))
            };
            if let Some((id, image)) = worker.sample(plan, *id, load)? {
                worker.timed(Stage::Assemble, || pack(&image, &mut pixels));
                labels.push(set.label(id) as i64);
                ids.push(id);
            }
        }
        if ids.is_empty() {
            return Err(Error::NothingLeft { epoch: plan.epoch, batch: plan.index, samples: plan.ids.len() });
        }
        Ok(Self { pixels: pixels.into(), shape: [ids.len(), channels, size, size], labels, ids, mixed: None })
    }

    /// Mixes the images as `mix` decides for the batch of `plan`.
    fn mix(mut self, mix: &Mix, seed: u64, plan: &BatchPlan) -> Self {
        let [_, _, height, width] = self.shape;
        if let Some(mixing) = mix.decide(seed, [plan.epoch, plan.index as u64], [height, width]) {
            mixing.apply(self.pixels.host_mut(), self.shape);
            let labels = self.labels.iter().rev().copied().collect();
            self.mixed = Some(MixedLabels { labels, lambda: mixing.lambda([height, width]) });
        }
        self
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The images in `samples`, in a batch of their own that shares the pixels.
    ///
    /// # Panics
    /// When `samples` ends after [`len`](Self::len).
    pub fn slice(&self, samples: Range<usize>) -> Self {
        let [_, c, h, w] = self.shape;
        Self {
            pixels: self.pixels.slice(samples.clone(), self.shape),
            shape: [samples.len(), c, h, w],
            labels: self.labels[samples.clone()].to_vec(),
            ids: self.ids[samples.clone()].to_vec(),
            mixed: self.mixed.as_ref().map(|mixed| mixed.slice(samples)),
        }
    }

    /// Copies the pixels to `device` now, as bytes; [`to_device`](Self::to_device) then uses the copy. Call it on a thread of
    /// the loader ([`Loader::with_device_prefetch`]), so that the copy overlaps with the step before. The host memory is
    /// pinned where the backend supports this. If the copy fails, `to_device` copies again.
    #[must_use]
    pub fn upload(mut self, device: &Device) -> Self {
        self.pixels.upload(self.shape, device);
        self
    }

    /// Copies the batch to `device`: normalised images `[B, C, H, W]` in f32, and labels `[B]`.
    /// The samples travel as bytes and become floats on the device.
    ///
    /// # Panics
    /// When `normalize` does not have one mean and one deviation for each of the C channels.
    pub fn to_device(&self, normalize: &Normalize, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let channels = self.shape[1];
        let row = |values: Vec<f32>| Tensor::<4>::from_data(TensorData::new(values, [1, channels, 1, 1]), device);
        // (x / 255 - mean) / std as one multiplication and one addition.
        let scale = normalize.std.iter().map(|std| 1.0 / (255.0 * std)).collect();
        let shift = normalize.mean.iter().zip(&normalize.std).map(|(mean, std)| -mean / std).collect();
        let images = self.pixels.on(self.shape, device).float() * row(scale) + row(shift);
        let labels = Tensor::from_data(TensorData::new(self.labels.clone(), [self.labels.len()]), device);
        (images, labels)
    }
}

/// Appends the image's channels one after the other.
fn pack(image: &Image, pixels: &mut Vec<u8>) {
    match image.channels {
        1 => pixels.extend_from_slice(&image.pixels),
        channels => {
            for channel in 0..channels {
                pixels.extend(image.pixels[channel..].iter().step_by(channels));
            }
        }
    }
}

/// Mean and standard deviation per channel, of samples scaled to [0, 1].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalize {
    /// One mean per channel.
    pub mean: Vec<f32>,
    /// One standard deviation per channel.
    pub std: Vec<f32>,
}

impl Normalize {
    /// The figures of ImageNet for RGB, which torchvision's weights expect; of Fashion-MNIST otherwise.
    pub fn for_channels(channels: usize) -> Self {
        match channels {
            3 => Self { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] },
            _ => Self { mean: vec![0.2860; channels], std: vec![0.3530; channels] },
        }
    }
}
