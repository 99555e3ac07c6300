//! Language modelling with a decoder: a GPT, or the model of a Hugging Face folder.

mod continuation;
mod data;
mod model;
mod settings;
mod task;

use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_models::DecoderConfig;
use kiln_training::InitialValues;

use crate::device;
use crate::pipelines::run::{Run, SAMPLES, Setup};
use crate::pipelines::teacher::TeacherModel;
use crate::usage::Usage;
use data::{largest, loaders};

pub(crate) use continuation::reader;
pub use data::{TokenData, open, test_loader};
pub(crate) use model::{begin_with, folder, named, of_folder, rate, stops};
pub use settings::{GptSettings, Text, TextSettings, fixture_recipe, recipe};
pub use task::{NextToken, next_token};

/// The run of the settings, and its device.
///
/// # Errors
/// Those of the device, the data and the settings.
pub fn run(mut settings: GptSettings) -> Result<(Run<NextToken>, Device)> {
    let (tokenizer, task) = next_token(&settings)?;
    let data = open(&settings, &tokenizer)?;
    let largest = largest(&data, SAMPLES)?;
    let has_teacher = settings.compression.as_ref().is_some_and(|compression| compression.teacher.is_some());
    if has_teacher && largest.is_some() {
        bail!(Usage("a model learns from a teacher on text, expected --data with a text and not with records".into()));
    }
    settings.run.fit_batch(data.train.len())?;
    let device = device::open(settings.run.own_device())?;
    let model = settings.model.clone();
    let compared = |own: &GptSettings| {
        Ok([
            ("tokens in its vocabulary", own.model.vocab(), model.vocab()),
            ("tokens of context", own.model.context(), model.context()),
        ])
    };
    let teacher = TeacherModel::open::<NextToken, _>(&settings, &device, compared, |own| {
        let config = own.model.clone();
        move |device: &Device| config.init(device)
    })?;
    let findings = continuation::finder(data.test.clone(), settings.data.text.tokenizer.clone(), settings.run.seed);
    let mut setup = Setup::new("gpt", loaders(data, &settings.run)?, settings);
    setup.largest = largest;
    let words = initial_words(&model);
    Ok((Run::new(task.taught(teacher), move |device| model.init(device), words, findings, setup), device))
}

/// The initial words of a model, some rows at a time.
pub(crate) fn initial_words(model: &DecoderConfig) -> InitialValues {
    let (path, model) = (model.words_path(), model.clone());
    InitialValues::default().with_rows(path, move |rows, device| model.initial_words(rows, device))
}
