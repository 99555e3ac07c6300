//! A batch of tiles on the host, and its copy to a device.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::RngExt;

use crate::decode::{Orientation, Samples};
use crate::error::Error;
use crate::images::{Normalize, byte_dtype};
use crate::loader::{BatchPlan, Loader, LoaderConfig, Stage, Worker};
use crate::order::sample_rng;

use super::class_ids::{ClassIds, Classes};
use super::grid::TileArea;
use super::place::Placement;
use super::source::Patch;
use super::tile_set::TileSet;

/// A batch of tiles on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct TileBatch {
    /// `[B, bands, H, W]`, flat: bytes for 8-bit images, otherwise floats in the file's units. Padding is 0.
    pub samples: Samples,
    /// `[B, bands, H, W]`.
    pub shape: [usize; 4],
    /// `[B, H, W]`, flat, if the set has masks. Padding has the ignored id, or 0.
    pub masks: Option<ClassIds>,
    /// The classes of the masks.
    pub classes: Option<Classes>,
    /// The part of each of the `B` tiles that is image and no padding.
    pub valid: Vec<TileArea>,
    /// `B` ids of the [`TileSet`].
    pub ids: Vec<usize>,
}

/// A batch of tiles on a device.
#[derive(Clone, Debug)]
pub struct TileTensors {
    /// `[B, bands, H, W]`, float, normalised; 0 in padding.
    pub images: Tensor<4>,
    /// `[B, H, W]` class ids, if there are masks; 0 where `weights` is 0, so that all of them are classes.
    pub masks: Option<Tensor<3, Int>>,
    /// `[B, H, W]`, float: the weight of a pixel in a loss, 1, or 0 for ignored pixels and padding.
    pub weights: Tensor<3>,
}

impl TileBatch {
    /// A loader of tile batches. With a seed in `turns` every tile and its mask are turned and mirrored at random, by one of the 8
    /// symmetries of the square: a function of (seed, epoch, id) alone.
    ///
    /// The loader holds its batches, the tile that is being packed, and the bytes that reading a tile takes, within its
    /// budget.
    ///
    /// # Errors
    /// Those of [`Loader::budgeted`].
    pub fn loader(set: TileSet, turns: Option<u64>, config: LoaderConfig) -> Result<Loader<Self>, Error> {
        let tile = tile_bytes(&set);
        let bytes = move |plan: &BatchPlan| tile.saturating_mul(plan.ids.len() as u64 + 1);
        let (samples, reading) = (set.len(), set.reading_bytes());
        let load = move |plan: &BatchPlan, worker: &Worker| Self::load(&set, turns, plan, worker);
        Ok(Loader::budgeted(samples, config, bytes, load)?.with_largest_image(reading))
    }

    /// Reads and packs the tiles of `plan`, straight into one buffer; `turns` as for [`loader`](Self::loader).
    ///
    /// # Errors
    /// Those of [`Worker::sample`] and [`Worker::within`]; for a tile [`Error::Read`] when its file is missing,
    /// [`Error::Format`] when it is damaged, has changed, or has an id that is no class, [`Error::TooLarge`] when it takes
    /// more bytes than the loader leaves for one; [`Error::NothingLeft`] when no tile could be read.
    pub fn load(set: &TileSet, turns: Option<u64>, plan: &BatchPlan, worker: &Worker) -> Result<Self, Error> {
        let mut batch = Self::with_capacity(set, plan.ids.len());
        for id in &plan.ids {
            let read = |id| Ok((id, set.read(id, plan, worker)?));
            if let Some((id, patch)) = worker.sample(plan, *id, read)? {
                let turn = turns.map_or(Orientation::default(), |seed| turn(seed, plan.epoch, id));
                worker.timed(Stage::Assemble, || batch.push(id, &patch, turn));
            }
        }
        match batch.is_empty() {
            true => Err(Error::NothingLeft { epoch: plan.epoch, batch: plan.index, samples: plan.ids.len() }),
            false => Ok(batch),
        }
    }

    fn with_capacity(set: &TileSet, tiles: usize) -> Self {
        let (bands, side, classes) = (set.bands(), set.config().tile, set.classes());
        let (samples, pixels) = (tiles * bands * side * side, tiles * side * side);
        Self {
            samples: match set.is_eight_bit() {
                true => Samples::U8(Vec::with_capacity(samples)),
                false => Samples::F32(Vec::with_capacity(samples)),
            },
            shape: [0, bands, side, side],
            masks: classes.map(|classes| match classes.are_small() {
                true => ClassIds::U8(Vec::with_capacity(pixels)),
                false => ClassIds::I64(Vec::with_capacity(pixels)),
            }),
            classes,
            valid: Vec::with_capacity(tiles),
            ids: Vec::with_capacity(tiles),
        }
    }

    fn push(&mut self, id: usize, patch: &Patch, turn: Orientation) {
        let [_, bands, side, _] = self.shape;
        let place = Placement::new(turn, side, patch.height, patch.width);
        let size = [patch.width, bands];
        match (&patch.samples, &mut self.samples) {
            (Samples::U8(patch), Samples::U8(all)) => place.copy(patch, size, more(all, bands * side * side, 0), |x| x),
            (Samples::F32(patch), Samples::F32(all)) => {
                place.copy(patch, size, more(all, bands * side * side, 0.0), |x| x);
            }
            _ => debug_assert!(false, "the set checks the type when a tile is read"),
        }
        if let (Some(ids), Some(masks)) = (&patch.ids, &mut self.masks) {
            let (size, pixels) = ([patch.width, 1], side * side);
            let padding = self.classes.and_then(|classes| classes.ignore).unwrap_or(0);
            match (ids, masks) {
                // The type holds all classes; floats are ids of 16 bits at most.
                (Samples::U8(ids), ClassIds::U8(all)) => place.copy(ids, size, more(all, pixels, padding as u8), |x| x),
                (Samples::F32(ids), ClassIds::U8(all)) => {
                    place.copy(ids, size, more(all, pixels, padding as u8), |id| id as u8);
                }
                (Samples::U8(ids), ClassIds::I64(all)) => {
                    place.copy(ids, size, more(all, pixels, padding.into()), i64::from);
                }
                (Samples::F32(ids), ClassIds::I64(all)) => {
                    place.copy(ids, size, more(all, pixels, padding.into()), |id| id as i64);
                }
            }
        }
        self.shape[0] += 1;
        self.valid.push(place.valid);
        self.ids.push(id);
    }

    /// Number of tiles.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no tile.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The tiles in `tiles`, in a batch of their own.
    ///
    /// # Panics
    /// When `tiles` ends after [`len`](Self::len).
    #[must_use]
    pub fn slice(&self, tiles: Range<usize>) -> Self {
        let [_, bands, h, w] = self.shape;
        let part = |size: usize| tiles.start * size..tiles.end * size;
        Self {
            samples: match &self.samples {
                Samples::U8(samples) => Samples::U8(samples[part(bands * h * w)].to_vec()),
                Samples::F32(samples) => Samples::F32(samples[part(bands * h * w)].to_vec()),
            },
            shape: [tiles.len(), bands, h, w],
            masks: self.masks.as_ref().map(|masks| masks.slice(part(h * w))),
            classes: self.classes,
            valid: self.valid[tiles.clone()].to_vec(),
            ids: self.ids[tiles].to_vec(),
        }
    }

    /// Copies the batch to `device`. Samples of 8 bits travel as bytes and are scaled to [0, 1] before `normalize` is
    /// applied; others are normalised in the file's units, for example metres.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when `normalize` does not have one mean and one deviation for each band.
    pub fn to_device(&self, normalize: &Normalize, device: &Device) -> Result<TileTensors, Error> {
        let [b, bands, h, w] = self.shape;
        let Normalize { mean, std } = normalize;
        if [mean.len(), std.len()] != [bands; 2] {
            let value = format!("{} means and {} deviations for {bands} bands", mean.len(), std.len());
            return Err(Error::setting("normalize", value, "one of each for a band"));
        }
        let bytes = |bytes: Vec<u8>| {
            Tensor::<3, Int>::from_data(TensorData::new(bytes, [b, h, w]), (device, byte_dtype(device))).float()
        };
        let (samples, unit) = match &self.samples {
            Samples::U8(samples) => {
                let data = TensorData::new(samples.clone(), self.shape);
                (Tensor::<4, Int>::from_data(data, (device, byte_dtype(device))).float(), 255.0)
            }
            Samples::F32(samples) => (Tensor::from_data(TensorData::new(samples.clone(), self.shape), device), 1.0),
        };
        let row = |values: Vec<f32>| Tensor::<4>::from_data(TensorData::new(values, [1, bands, 1, 1]), device);
        // (x / unit - mean) / std as one multiplication and one addition.
        let scale = row(std.iter().map(|std| 1.0 / (unit * std)).collect());
        let shift = row(mean.iter().zip(std).map(|(mean, std)| -mean / std).collect());
        let mut images = samples * scale + shift;
        if self.valid.iter().any(|area| [area.height, area.width] != [h, w]) {
            images = images * bytes(self.inside()).unsqueeze_dim(1);
        }
        let weights = self.weights();
        let masks = self.masks.as_ref().map(|masks| {
            let ids = masks.iter().zip(&weights).map(|(id, weight)| id * i64::from(*weight)).collect();
            Tensor::from_data(TensorData::new::<i64, _>(ids, [b, h, w]), device)
        });
        Ok(TileTensors { images, masks, weights: bytes(weights) })
    }

    /// 1 where a pixel is in the image, 0 in padding.
    fn inside(&self) -> Vec<u8> {
        let [b, _, h, w] = self.shape;
        let mut inside = vec![0; b * h * w];
        for (tile, area) in inside.chunks_exact_mut(h * w).zip(&self.valid) {
            for row in tile.chunks_exact_mut(w).skip(area.top).take(area.height) {
                row[area.left..area.left + area.width].fill(1);
            }
        }
        inside
    }

    /// 1 for pixels with a weight in the loss, 0 for ignored pixels and padding.
    fn weights(&self) -> Vec<u8> {
        let mut weights = self.inside();
        if let (Some(masks), Some(ignore)) = (&self.masks, self.classes.and_then(|classes| classes.ignore)) {
            weights.iter_mut().zip(masks.iter()).for_each(|(weight, id)| *weight *= u8::from(id != i64::from(ignore)));
        }
        weights
    }
}

/// Bytes of a tile in a batch. The tile that was read and is being packed takes no more.
fn tile_bytes(set: &TileSet) -> u64 {
    let pixels = (set.config().tile as u64).pow(2);
    // Small ids may be read as floats.
    let id = set.classes().map_or(0, |classes| if classes.are_small() { 4 } else { 8 });
    let sample = if set.is_eight_bit() { 1 } else { 4 };
    // The valid area and the tile's id.
    pixels.saturating_mul(set.bands() as u64 * sample + id) + 48
}

/// One of the 8 symmetries of the square.
fn turn(seed: u64, epoch: u64, id: usize) -> Orientation {
    let exif = sample_rng(seed, epoch, id as u64).random_range(1..=8);
    Orientation::from_exif(exif).unwrap_or_default()
}

/// Appends `count` times `value`, to be overwritten.
fn more<T: Clone>(all: &mut Vec<T>, count: usize, value: T) -> &mut [T] {
    let start = all.len();
    all.resize(start + count, value);
    &mut all[start..]
}
