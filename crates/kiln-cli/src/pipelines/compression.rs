//! Settings that make a run's model smaller, and the attachments that follow from them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::store::bridge;
use burn::store::burn_pack::Tensor as Filed;
use kiln_compression::{
    Adapters, Error, FakeQuantizer, FourBitWeights, FourBits, Gradual, LowRank, Masks, Nest, Pruning, Quantization,
    Scope, Shapes, mask_moments, prune,
};
use kiln_precision::Policy;
use kiln_training::{Task, TrainerBuilder};
use serde::{Deserialize, Serialize};

/// Settings that make a run's model smaller. All of them can be combined. A weight passes through mask, adapter and fake quantisation, in
/// this order, before its layer reads it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressionSettings {
    /// Gradual pruning of weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune: Option<PruneSettings>,
    /// Low-rank adapters, which are then trained alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSettings>,
    /// Training with weights and inputs rounded to the values of integers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantize: Option<QuantizeSettings>,
    /// A model that this one learns from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<TeacherSettings>,
    /// The shapes of a model with fewer channels than its configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shapes: Option<Shapes>,
}

/// Gradual pruning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PruneSettings {
    /// The share of the weights that is left out, by step.
    pub schedule: Gradual,
    /// Whether weights are compared over the whole model or layer by layer.
    pub scope: Scope,
    /// Instead of a sparsity: N of M weights in a row stay, from the first step on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<[usize; 2]>,
    /// Weights below these paths are not pruned.
    #[serde(default)]
    pub skip: Vec<String>,
}

/// Low-rank adapters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraSettings {
    /// The rank.
    pub rank: usize,
    /// The product of the factors is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Ends of the paths of the layers that have adapters.
    pub targets: Vec<String>,
    /// Whether the magnitude of each output is trained separately.
    #[serde(default)]
    pub dora: bool,
    /// Bits of the weights that the adapters are trained beside: 4, in the codes NF4. `None` if they stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_bits: Option<u8>,
    /// A folder of peft with the adapters that a run begins with. `None` for new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
}

/// Quantisation-aware training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantizeSettings {
    /// The weights to quantise, and their bits.
    pub weights: Quantization,
    /// The momentum by which a batch moves the ranges of layers' inputs. `None` if inputs are not simulated in 8 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_momentum: Option<f64>,
}

/// Distillation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeacherSettings {
    /// A run directory, or one of its checkpoints.
    pub checkpoint: PathBuf,
    /// Divides the logits of both models before they are compared.
    pub temperature: f64,
    /// The share of the loss that compares with the teacher; the rest compares with the labels.
    pub share: f64,
}

/// The codes of a model's weights: of all linear layers but the head, as in transformers.
pub(crate) fn four_bits() -> FourBits {
    FourBits::default().skip(["lm_head"])
}

/// The attachments of a model: mask, adapter, fake quantisation.
pub type Attached = Nest<Nest<Masks, LowRank>, FakeQuantizer>;

/// The attachments of a model whose weights are codes.
pub(crate) type Coded = Nest<FourBitWeights, LowRank>;

/// The source of the initial values of attachments.
#[derive(Clone)]
pub(crate) enum BaseValues {
    /// A checkpoint, whose values come after the attachments.
    Checkpoint,
    /// For weights that are codes, tensors of a file by path, once they are found, and for others the model. For adapters, the folder that the
    /// settings name.
    Tensors {
        tensors: Rc<RefCell<BTreeMap<String, Filed>>>,
        /// The adapters of the folder, once they are read.
        adapters: Rc<Cell<Option<Adapters>>>,
    },
}

impl CompressionSettings {
    /// Whether something is attached to the model's parameters.
    pub fn attaches(&self) -> bool {
        self.prune.is_some() || self.lora.is_some() || self.quantize.is_some()
    }

    /// The attachments to the parameters of `model`, which must be plain.
    ///
    /// # Errors
    /// Paths that the model does not have, and numbers out of range.
    pub fn attached(&self, model: &impl Module) -> Result<Attached, Error> {
        self.attached_from(model, &BaseValues::Checkpoint)
    }

    fn attached_from(&self, model: &impl Module, values: &BaseValues) -> Result<Attached, Error> {
        let masks = self.prune.as_ref().map(|settings| settings.masks(model)).transpose()?;
        let adapters = self.lora.as_ref().map(|settings| settings.adapters(model, values)).transpose()?;
        let fake = self.quantize.as_ref().map(|settings| settings.fake(model)).transpose()?;
        Ok(Nest::optional(Some(Nest::optional(masks, adapters)), fake))
    }

    /// Returns `model` with everything attached, below the policy's cast.
    ///
    /// # Errors
    /// Those of [`attached`](Self::attached), and of the policy.
    pub fn attach<M: Module>(&self, model: M, policy: &Policy) -> anyhow::Result<M> {
        if !self.attaches() {
            return Ok(policy.autocast(model)?);
        }
        if self.has_codes() {
            let (coded, cast) = (self.coded(&model, &BaseValues::Checkpoint)?, policy.reparameterizer(&model)?);
            return Ok(model.apply_reparameterization(Nest::new(coded, cast)));
        }
        let (attached, cast) = (self.attached(&model)?, policy.reparameterizer(&model)?);
        Ok(model.apply_reparameterization(Nest::new(attached, cast)))
    }
}

impl CompressionSettings {
    /// Whether weights of the model are codes.
    pub fn has_codes(&self) -> bool {
        self.lora.as_ref().is_some_and(|lora| lora.base_bits.is_some())
    }

    /// Codes of weights and adapters beside them, for `model`, which must be plain.
    ///
    /// # Errors
    /// Settings that do not fit each other, paths that the model does not have, and values that cannot be read.
    pub(crate) fn coded(&self, model: &impl Module, values: &BaseValues) -> Result<Coded, Error> {
        let refuse = |name, value: String, expected| Err(Error::InvalidSetting { name, value, expected });
        let Some(lora) = &self.lora else { return Ok(Nest::optional(None, None)) };
        if let Some(bits) = lora.base_bits.filter(|bits| *bits != 4) {
            return refuse("the bits of the base", bits.to_string(), "4");
        }
        if self.prune.is_some() || self.quantize.is_some() {
            let expected = "none in a run that prunes weights or trains them for integers";
            return refuse("the bits of the base", "4".into(), expected);
        }
        let adapters = lora.adapters(model, values)?;
        let codes = four_bits();
        let codes = match values {
            BaseValues::Checkpoint => codes.shapes_of(model)?,
            BaseValues::Tensors { tensors, .. } => codes.of(model, |path| match tensors.borrow().get(path) {
                Some(tensor) => {
                    let unread = |reason: String| Error::Read { path: path.to_owned(), reason };
                    bridge::to_data(tensor).map(Some).map_err(|reason| unread(reason.to_string()))
                }
                None => Ok(None),
            })?,
        };
        let adapters = if lora.dora { adapters.with_magnitudes(codes.norms()) } else { adapters };
        Ok(Nest::new(codes, adapters))
    }

    /// Returns `builder` with everything attached to its model. Its masks are updated during the run.
    pub(crate) fn into_builder<'a, T: Task>(
        self,
        builder: TrainerBuilder<'a, T>,
        values: BaseValues,
    ) -> TrainerBuilder<'a, T> {
        if self.has_codes() {
            return builder.with_early_reparameterization(move |model| self.coded(model, &values));
        }
        let prune = self.prune.clone();
        let builder = builder.with_reparameterization(move |model| self.attached_from(model, &values));
        match prune {
            Some(prune) => builder.with_model_edit(move |step, model, optimizer| prune.edited(step, model, optimizer)),
            None => builder,
        }
    }
}

impl PruneSettings {
    fn masks(&self, model: &impl Module) -> Result<Masks, Error> {
        self.schedule.check()?;
        self.skip.iter().try_fold(Masks::of(model), |masks, path| masks.skip(path))
    }

    /// The model and the optimizer with the masks of a run after `step` steps. `None` if the masks stay.
    ///
    /// # Errors
    /// Weights that are not finite.
    pub fn edited<M: Module>(
        &self,
        step: u64,
        model: &M,
        optimizer: &ModuleOptimizer,
    ) -> Result<Option<(M, ModuleOptimizer)>, Error> {
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        let chosen = if self.pattern.is_some() { step == 0 } else { self.schedule.is_update(step) };
        if !chosen {
            return Ok(None);
        }
        let how = match self.pattern {
            Some([n, m]) => Pruning::NOfM { n, m },
            None => Pruning::Magnitude { sparsity: self.schedule.sparsity_at(step), scope: self.scope },
        };
        let model = prune(model.clone(), &how)?;
        let optimizer = mask_moments(optimizer.clone(), &model)?;
        Ok(Some((model, optimizer)))
    }
}

impl LoraSettings {
    fn adapters(&self, model: &impl Module, values: &BaseValues) -> Result<LowRank, Error> {
        let adapters = LowRank::new(self.rank, self.alpha, self.targets.iter().map(String::as_str))?;
        let adapters = adapters.with_dora(self.dora);
        let adapters = match (&self.from, values) {
            (Some(folder), BaseValues::Tensors { adapters: read, .. }) => {
                let given = match read.take() {
                    Some(given) => given,
                    None => super::peft::adapters(folder)?,
                };
                read.set(Some(given.clone()));
                let Self { rank, alpha, dora, .. } = *self;
                let scale = |alpha: f64, rank: usize| (alpha / rank as f64) as f32;
                let kind = given.kind()?;
                if (kind.rank, scale(kind.alpha, kind.rank), kind.dora) != (rank, scale(alpha, rank), dora) {
                    let value = format!("rank {rank}, alpha {alpha}, dora {dora}");
                    let expected = "those of the folder's adapter_config.json";
                    return Err(Error::InvalidSetting { name: "compression.lora", value, expected });
                }
                given.begun(adapters)
            }
            _ => adapters,
        };
        adapters.check(model)?;
        Ok(adapters)
    }
}

/// Makes the layers of kiln-models apply simulated quantisation to their inputs.
pub fn simulate_inputs() {
    if !kiln_models::on_layer_input(kiln_compression::input_map) {
        tracing::warn!("inputs are not simulated: layers ask another hook");
    }
}

impl QuantizeSettings {
    fn fake(&self, model: &impl Module) -> Result<FakeQuantizer, Error> {
        let fake = FakeQuantizer::of(model, &self.weights)?;
        match self.input_momentum {
            Some(momentum) => {
                simulate_inputs();
                fake.with_inputs(momentum)
            }
            None => Ok(fake),
        }
    }
}
