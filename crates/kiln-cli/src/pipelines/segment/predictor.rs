//! Predicts the classes of the pixels of whole images with a trained model.

use std::path::Path;

use anyhow::Result;
use burn::tensor::Device;
use kiln_data::{BadSamples, TileBatch, TileConfig, TileSet};
use kiln_models::Unet;
use kiln_training::{Error, Passes, Predicted};

use super::run::check_images;
use super::score::largest;
use super::settings::SegmentSettings;
use super::task::{Segment, segment};
use crate::device;
use crate::pipelines::load::load_any;

/// A trained model with its task, settings and device.
pub struct Predictor {
    /// The task that the model was trained for.
    pub task: Segment,
    /// The model in the precision of its run.
    pub model: Unet,
    /// Where the model is.
    pub device: Device,
    /// The settings of its run.
    pub settings: SegmentSettings,
}

impl Predictor {
    /// The model of a run with these settings and the weights at `path`.
    ///
    /// # Errors
    /// Errors of weights of another model, and of a device that is missing or does not compute in the run's precision.
    pub fn open(settings: SegmentSettings, path: &Path) -> Result<Self> {
        let device = device::open(&settings.run.device)?;
        let model = load_any(settings.model.init(&device)?, path)?;
        kiln_precision::check_device(&device, settings.run.precision)?;
        let model = settings.run.policy().autocast(model)?;
        Ok(Self { task: segment(&settings, None)?, model, device, settings })
    }

    /// The tiles of one image.
    ///
    /// # Errors
    /// The error of an image that cannot be read or does not fit the model.
    pub fn tiles(&self, image: &Path) -> Result<TileSet> {
        let tiles = &self.settings.data.tiles;
        let set = TileSet::new([image], TileConfig::new(tiles.size).with_overlap(tiles.overlap[1]))?;
        check_images(&self.settings, &set)?;
        Ok(set)
    }

    /// Calls `row` with the number of each row of the image and the classes of its pixels, from the top. Each pixel has a class, so that
    /// no tile may be left out.
    ///
    /// # Errors
    /// A tile that cannot be read, and the errors of `row`.
    pub fn rows(
        &self,
        set: &TileSet,
        mut row: impl FnMut(usize, &[u16]) -> Result<(), kiln_data::Error>,
    ) -> Result<()> {
        let (classes, mut ids) = (self.settings.model.classes, vec![]);
        let loading = self.settings.run.loader(set.len()).with_bad_samples(BadSamples::FAIL);
        let loader = TileBatch::loader(set.clone(), None, loading)?;
        let batches = loader.epoch(0, 0).map(|batch| batch.map_err(Error::Data));
        self.task.predict(
            &self.model,
            set,
            batches,
            &Passes::on(&self.device),
            self.settings.run.at_once(),
            |event| {
                if let Predicted::Row { y, values, .. } = event {
                    largest(values, classes, &mut ids);
                    row(y, &ids)?;
                }
                Ok(())
            },
        )?;
        Ok(())
    }
}
