//! A teacher: a model that another one learns from.

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use kiln_compression::DistillationLoss;
use kiln_data::printable;
use kiln_models::SafetensorsModel;

use super::load::{load_merged, settings_beside};
use super::pipeline::{Pipeline, SettingsOf, moved, parse};
use crate::usage::Usage;

type Init<M> = Box<dyn Fn(&Device) -> Result<M, kiln_models::Error> + Send + Sync>;

/// Something that a teacher has in common with its student: what it is, the teacher's number, and the student's.
pub(super) type Compared = (&'static str, usize, usize);

/// A model that another one learns from, for inference.
pub(super) struct TeacherModel<M> {
    init: Init<M>,
    /// On the autodiff device of the steps, frozen: its outputs have no gradients.
    model: M,
    device: Device,
    /// How outputs are compared.
    pub(super) loss: DistillationLoss,
    /// The share of the loss that compares with the teacher.
    pub(super) share: f64,
}

impl<M: SafetensorsModel> TeacherModel<M> {
    /// Loads the teacher of a run to `device`, if the settings name one. `compared` gives the numbers in which both must agree, and
    /// `init` what makes the plain model, both from the settings of the teacher's own run.
    ///
    /// # Errors
    /// [`Usage`] for numbers out of range and for another teacher, and the error of a checkpoint that cannot be read.
    pub(super) fn open<P, F>(
        student: &SettingsOf<P>,
        device: &Device,
        compared: impl Fn(&SettingsOf<P>) -> Result<[Compared; 2]>,
        init: impl Fn(&SettingsOf<P>) -> F,
    ) -> Result<Option<Self>>
    where
        P: Pipeline<Model = M>,
        F: Fn(&Device) -> Result<M, kiln_models::Error> + Send + Sync + 'static,
    {
        let Some(settings) = student.compression.as_ref().and_then(|compression| compression.teacher.as_ref()) else {
            return Ok(None);
        };
        let (checkpoint, share) = (&settings.checkpoint, settings.share);
        let file = settings_beside(checkpoint).with_context(|| {
            let shown = printable(checkpoint);
            format!("no config.toml in or above '{shown}', expected a run directory or one of its checkpoints")
        })?;
        let shown = printable(&file);
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read '{shown}'"))?;
        let foreign = |error: &str| Usage(format!("config '{shown}' is of another model or damaged: {error}"));
        let mut tables = text.parse().map_err(|error: toml::de::Error| foreign(error.message()))?;
        moved(&mut tables);
        let own = parse::<P>(tables, "teacher").map_err(|error| foreign(&error.0))?;
        for (what, teacher, student) in compared(&own)? {
            if teacher != student {
                bail!(Usage(format!("the teacher has {teacher} {what}, expected {student} as the student")));
            }
        }
        if !(0.0..=1.0).contains(&share) {
            bail!(Usage(format!("the teacher's share of the loss is {share}, expected a number from 0 to 1")));
        }
        let loss = DistillationLoss::new(settings.temperature).map_err(|error| Usage(error.to_string()))?;
        let (device, init) = (device.clone().autodiff(), init(&own));
        let model = load_merged(init(&device)?, own.compression.as_ref(), checkpoint)?.freeze();
        Ok(Some(Self { init: Box::new(init), model, device, loss, share }))
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
