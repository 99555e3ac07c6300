//! A teacher: a model that another one learns from.

use std::path::Path;

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use kiln_compression::DistillationLoss;
use kiln_data::printable;
use kiln_models::SafetensorsModel;
use serde::de::DeserializeOwned;

use super::compression::{CompressionSettings, TeacherSettings};
use super::load::{load_merged, settings_beside};
use crate::usage::Usage;

type Init<M> = Box<dyn Fn(&Device) -> Result<M, kiln_models::Error> + Send + Sync>;

/// A teacher: a model that another one learns from, for inference.
pub(super) struct Tutor<M> {
    init: Init<M>,
    /// On the autodiff device of the steps, frozen: its outputs have no gradients.
    model: M,
    device: Device,
    /// How outputs are compared.
    pub(super) loss: DistillationLoss,
    /// The share of the loss that compares with the teacher.
    pub(super) share: f64,
}

impl<M: SafetensorsModel> Tutor<M> {
    /// Loads the model of the settings' checkpoint to `device`. `init` makes the plain model. `compression` is that of the teacher's own
    /// run.
    ///
    /// # Errors
    /// [`Usage`] for numbers out of range, and the error of a checkpoint that cannot be read.
    pub(super) fn load(
        settings: &TeacherSettings,
        init: impl Fn(&Device) -> Result<M, kiln_models::Error> + Send + Sync + 'static,
        compression: Option<&CompressionSettings>,
        device: &Device,
    ) -> Result<Self> {
        let TeacherSettings { checkpoint, temperature, share } = settings;
        if !(0.0..=1.0).contains(share) {
            bail!(Usage(format!("the teacher's share of the loss is {share}, expected a number from 0 to 1")));
        }
        let loss = DistillationLoss::new(*temperature).map_err(|error| Usage(error.to_string()))?;
        let device = device.clone().autodiff();
        let model = load_merged(init(&device)?, compression, checkpoint)?.freeze();
        Ok(Self { init: Box::new(init), model, device, loss, share: *share })
    }

    /// Bytes of its parameters and running statistics, in f32.
    pub(super) fn bytes(&self) -> u64 {
        4 * self.model.num_params() as u64
    }

    /// The model on a device of steps, without gradients. On the device that records steps it has other weights.
    pub(super) fn on(&self, device: &Device) -> M {
        match *device == self.device {
            true => self.model.clone(),
            false => (self.init)(device).map_or_else(|_| self.model.clone(), |model| model.freeze()),
        }
    }
}

/// The settings of the run that a checkpoint belongs to, from the directory around it.
pub(super) fn settings_of<S: DeserializeOwned>(checkpoint: &Path) -> Result<S> {
    let file = settings_beside(checkpoint).with_context(|| {
        format!(
            "no config.toml in or above '{}', expected a run directory or one of its checkpoints",
            printable(&checkpoint)
        )
    })?;
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read '{}'", printable(&file)))?;
    toml::from_str(&text).map_err(|error| {
        Usage(format!("config '{}' is of another model or damaged: {}", printable(&file), error.message())).into()
    })
}
