//! The initial model of a run: its shapes, and the weights that its settings name.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use burn::tensor::Device;
use kiln_data::printable;
use kiln_memory::is_capture;
use kiln_models::{Error, Matched, SafetensorsModel};
use kiln_runs::{CHECKPOINTS, Status};
use kiln_training::{Checkpoints, InitialValues};

use super::compression::{BaseValues, CompressionSettings, four_bits};
use super::load::{MANIFEST, MODEL, load_any, shaped};
use super::settings::RunSettings;

/// The index of a model in several files.
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a file that a model has taken, once the model exists.
pub type Taken = Rc<RefCell<Option<Matched>>>;

/// Why the initial model of a run cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The configuration is refused.
    #[error(transparent)]
    Model(#[from] Error),
    /// The compression does not fit the model.
    #[error(transparent)]
    Compression(#[from] kiln_compression::Error),
    /// The weights that the run starts from cannot be read.
    #[error("{0}")]
    Weights(String),
}

/// The initial state of a run's model.
pub(super) struct InitialModel {
    compression: Option<CompressionSettings>,
    init: Option<PathBuf>,
    /// Whether a checkpoint already has the weights.
    weights_in_checkpoint: bool,
    /// Where the weights are, once that was asked.
    weights: OnceCell<Weights>,
    taken: Taken,
    base: BaseValues,
}

impl InitialModel {
    pub(super) fn new(run: &RunSettings, compression: Option<&CompressionSettings>) -> Self {
        Self {
            compression: compression.cloned(),
            init: run.init.clone(),
            weights_in_checkpoint: run.weights_in_checkpoint,
            weights: OnceCell::new(),
            taken: Taken::default(),
            base: match run.weights_in_checkpoint {
                true => BaseValues::Checkpoint,
                false => BaseValues::Tensors { tensors: Rc::default(), adapters: Rc::default() },
            },
        }
    }

    /// A shared list of the tensors that were taken from the file.
    pub(super) fn taken(&self) -> Taken {
        self.taken.clone()
    }

    /// The values of weights that become codes, once [`values`](Self::values) has found them.
    pub(super) fn base(&self) -> BaseValues {
        self.base.clone()
    }

    /// Gives `model` the shapes and the weights that its compression says. On the device that records steps it loads no weights.
    pub(super) fn load<M: SafetensorsModel>(&self, model: M, device: &Device) -> Result<M, InitError> {
        let model = shaped(model, self.compression.as_ref())?;
        if is_capture(device) {
            return Ok(model);
        }
        match self.weights()? {
            Some(Weights::Checkpoint(path)) => {
                load_any(model, path).map_err(|error| InitError::Weights(format!("{error:#}")))
            }
            _ => Ok(model),
        }
    }

    /// The initial weights that are in no checkpoint of the run yet. Where they are is decided once: the other run may go on meanwhile.
    fn weights(&self) -> Result<Option<&Weights>, InitError> {
        let Some(init) = self.init.as_deref().filter(|_| !self.weights_in_checkpoint) else { return Ok(None) };
        if self.weights.get().is_none() {
            let _ = self.weights.set(Weights::at(init)?);
        }
        Ok(self.weights.get())
    }

    /// Adds the tensors of the file that the settings name, without those of weights that become codes.
    pub(super) fn values<M: SafetensorsModel>(
        &self,
        model: &M,
        values: InitialValues,
    ) -> Result<InitialValues, InitError> {
        let Some(Weights::File(path)) = self.weights()? else { return Ok(values) };
        let (tensors, matched) = model.matching(path).map_err(advised)?;
        *self.taken.borrow_mut() = Some(matched);
        let has_codes = self.compression.as_ref().is_some_and(CompressionSettings::has_codes);
        let BaseValues::Tensors { tensors: base, .. } = &self.base else { return Ok(values) };
        if !has_codes {
            return Ok(values.with_tensors(tensors));
        }
        // Weights that become codes are never in memory together.
        let coded = four_bits().shapes_of(model)?;
        let coded: BTreeSet<&str> = coded.paths().collect();
        let (coded, others): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|tensor| coded.contains(tensor.name.as_str()));
        *base.borrow_mut() = coded.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        Ok(values.with_tensors(others))
    }
}

/// The weights that `--init` names.
enum Weights {
    /// A file whose tensors that fit are taken: the named one, or that of a folder or of a run that has ended.
    File(PathBuf),
    /// A checkpoint, or a run that has some, whose model is taken as a whole.
    Checkpoint(PathBuf),
}

impl Weights {
    fn at(path: &Path) -> Result<Self, InitError> {
        let file = [MODEL, INDEX].map(|name| path.join(name)).into_iter().find(|file| file.is_file());
        match file {
            // A run that went on after it wrote the file, and has not ended again.
            Some(_) if went_on(path) => Ok(Self::Checkpoint(path.to_owned())),
            Some(file) => Ok(Self::File(file)),
            None if !path.is_dir() => Ok(Self::File(path.to_owned())),
            None if [MANIFEST, CHECKPOINTS].iter().any(|name| path.join(name).exists()) => {
                Ok(Self::Checkpoint(path.to_owned()))
            }
            None => Err(InitError::Weights(format!(
                "cannot load '{}': there is no {MODEL} in it, expected a .safetensors file, the directory of a run, or one of its \
                 checkpoints",
                printable(&path)
            ))),
        }
    }
}

/// Whether a run has a checkpoint of a later step than its file of weights.
fn went_on(run: &Path) -> bool {
    let ended = || Status::read(run)?.results["steps"].as_u64();
    let newest = || Checkpoints::new(run.join(CHECKPOINTS), 1).ok()?.newest_step().ok()?;
    matches!((newest(), ended()), (Some(newest), Some(ended)) if newest > ended)
}

/// Adds the option that makes the model fit to an error of a file that does not fit.
fn advised(error: Error) -> InitError {
    let Error::Shape { name, expected, found, .. } = &error else { return InitError::Model(error) };
    InitError::Weights(format!("{error}; {}", advice(name, expected, found)))
}

/// Advice for a tensor of another shape.
fn advice(name: &str, expected: &[usize], found: &[usize]) -> String {
    let first = ["conv1.weight", "conv1.conv.weight", "stem.conv.weight", "encoder.0.conv.conv.weight"];
    match (name, found) {
        ("embed_tokens.weight" | "lm_head.weight", _) => "--model with the file's folder makes them the same".into(),
        ("wpe.weight", [context, ..]) => format!("--context {context} makes the model's context the file's"),
        ("wte.weight", _) => "--tokenizer with the file's vocabulary makes the numbers of tokens the same".into(),
        ("patches.pos_embed", _) => {
            "--image-size with the size that the file was trained at makes them the same".into()
        }
        (_, [_, channels, ..]) if first.contains(&name) && expected.get(1).is_some_and(|own| own != channels) => {
            format!("the file is for images of {channels} channels: --channels {channels} decodes them to as many")
        }
        _ if first.contains(&name) => "--stem and --width of the file's model make them the same".into(),
        _ => "--model and --width of the file's model make them the same".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::advice;

    #[test]
    fn each_difference_has_its_option() {
        for (name, expected, found, part) in [
            ("wpe.weight", &[64, 128][..], &[1024, 128][..], "--context 1024"),
            ("wte.weight", &[256, 128], &[50257, 128], "--tokenizer"),
            ("patches.pos_embed", &[1, 17, 192], &[1, 197, 192], "--image-size"),
            ("conv1.weight", &[64, 1, 7, 7], &[64, 3, 7, 7], "3 channels"),
            ("conv1.weight", &[64, 3, 3, 3], &[64, 3, 7, 7], "--stem"),
            ("layer1.0.conv1.weight", &[16, 16, 3, 3], &[64, 64, 3, 3], "--width"),
        ] {
            assert!(advice(name, expected, found).contains(part), "{name}");
        }
    }
}
