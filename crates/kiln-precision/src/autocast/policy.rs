//! Policies: the precision in which each parameter is read or stored.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::cast::Autocast;
use super::parameters::{Parameters, Place};
use crate::Error;
use crate::precision::Precision;

/// Layers whose parameters are never cast. Most of them mix dtypes inside and therefore run in f32 only. An embedding adds up
/// the gradients of all positions of a token, a sum that 16 bits cannot represent.
const ALWAYS_F32: [&str; 7] = ["BatchNorm", "Embedding", "Lstm", "BiLstm", "Gru", "BiGru", "Rnn"];
/// Layers that reduce over their input.
const NORMS: [&str; 4] = ["LayerNorm", "RmsNorm", "GroupNorm", "InstanceNorm"];

/// The precision that a model computes in, and the parameters that stay f32 nevertheless.
///
/// A layer computes in the dtype of its parameters, and its input must have the same dtype (burn converts nothing by itself).
/// Cast the model's input to [`compute`](Self::compute); activations then have that dtype. Parameters of batch-norm, of
/// recurrent layers and of embeddings are f32 under every policy: run batch-norm and recurrent layers in
/// [`in_f32`](crate::in_f32), and cast the output of an embedding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    compute: Precision,
    #[serde(default)]
    keep_paths: BTreeSet<String>,
    #[serde(default)]
    keep_kinds: BTreeSet<String>,
    #[serde(default)]
    keep_norms: bool,
    #[serde(default)]
    stores: bool,
}

impl Policy {
    /// A policy that computes in `compute` in every layer that can.
    pub fn new(compute: Precision) -> Self {
        Self { compute, ..Self::default() }
    }

    /// Keeps the parameters under `path` in f32: names of fields joined by dots, `head` or `blocks.0.attn`.
    pub fn keep_path(mut self, path: impl Into<String>) -> Self {
        self.keep_paths.insert(path.into());
        self
    }

    /// Keeps the parameters of modules of this type in f32: `Linear`, or the name of your own struct.
    pub fn keep_kind(mut self, kind: impl Into<String>) -> Self {
        self.keep_kinds.insert(kind.into());
        self
    }

    /// Keeps the parameters of layer, RMS, group and instance norms in f32, for models that run their norms in f32.
    pub fn keep_norms(mut self) -> Self {
        self.keep_norms = true;
        self
    }

    /// Has the parameters that layers read in bf16 *stored* in bf16, without a master copy in f32: [`apply`](Self::apply) then does what
    /// [`store`](Self::store) does. Under f32 it changes nothing. In PyTorch: `model.to(torch.bfloat16)`.
    #[must_use]
    pub fn storing(self) -> Self {
        Self { stores: true, ..self }
    }

    /// Whether parameters are stored in 16 bits: those of a policy that is [`storing`](Self::storing) and does not compute in f32.
    pub fn stores(&self) -> bool {
        self.stores && self.compute != Precision::F32
    }

    /// Sets the precision that layers compute in. The parameters that stay f32 are not changed.
    #[must_use]
    pub fn computing_in(self, compute: Precision) -> Self {
        Self { compute, ..self }
    }

    /// The precision that layers compute in.
    pub fn compute(&self) -> Precision {
        self.compute
    }

    /// Puts `model` under the policy: [`autocast`](Self::autocast), or [`store`](Self::store) if the policy is
    /// [`storing`](Self::storing).
    ///
    /// # Errors
    /// Those of the two.
    pub fn apply<M: Module>(&self, model: M) -> Result<M, Error> {
        if self.stores() { self.store(model) } else { self.autocast(model) }
    }

    /// Makes the layers of `model` read their parameters in [`compute`](Self::compute). Stored parameters, gradients, optimizer state and
    /// records stay f32: a record of the result loads into the plain model bit for bit.
    ///
    /// The cast is part of the graph (burn's `Reparameterization`), so that gradients are f32. Each layer that reads a parameter
    /// keeps a 16-bit copy of it until the backward pass.
    ///
    /// # Errors
    /// [`Error::NotInModel`] for a path or kind that the model does not have, [`Error::Reparameterized`] for a model that is
    /// already under a policy.
    pub fn autocast<M: Module>(&self, model: M) -> Result<M, Error> {
        let autocast = self.reparameterizer(&model)?;
        if self.compute == Precision::F32 {
            return Ok(model);
        }
        Ok(model.apply_reparameterization(autocast))
    }

    /// The reparameterization that [`autocast`](Self::autocast) attaches to the parameters of `model`, for programs that attach more than
    /// one. A parameter of burn holds one reparameterization, so all of them must be attached at once, with the cast last. Under f32
    /// nothing is attached.
    ///
    /// # Errors
    /// Those of [`autocast`](Self::autocast).
    pub fn reparameterizer(&self, model: &impl Module) -> Result<Autocast, Error> {
        let mut dtypes = self.dtypes(model)?;
        if self.compute == Precision::F32 {
            dtypes.clear();
        }
        Ok(Autocast { dtypes })
    }

    /// Converts the parameters of `model` so that they are *stored* in [`compute`](Self::compute), for training with
    /// `StochasticBf16` of kiln-optimizers. Its gradients and records then have that dtype too.
    ///
    /// Load a record before this call: a record replaces the dtypes of parameters.
    ///
    /// f16 is refused: gradients of f16 parameters are f16 and underflow when they are unscaled (torch's error is "attempting to
    /// unscale FP16 gradients").
    ///
    /// # Errors
    /// Those of [`autocast`](Self::autocast), and [`Error::StoresF16`].
    pub fn store<M: Module>(&self, model: M) -> Result<M, Error> {
        let dtypes = self.stored_dtypes(&model)?;
        if dtypes.is_empty() {
            return Ok(model);
        }
        Ok(model.map(&mut Convert { dtypes, path: vec![] }))
    }

    /// The dtypes that [`store`](Self::store) gives to parameters, by path, for those that are not f32. A store of parameters takes them
    /// too (`Creation` of kiln-checkpointing). Parameters that burn has not initialised stay so.
    ///
    /// # Errors
    /// Those of [`store`](Self::store).
    pub fn stored_dtypes(&self, model: &impl Module) -> Result<BTreeMap<String, DType>, Error> {
        let mut dtypes = self.dtypes(model)?;
        dtypes.retain(|_, dtype| *dtype != DType::F32);
        match self.compute {
            Precision::F16 => Err(Error::StoresF16),
            Precision::F32 | Precision::BF16 => Ok(dtypes),
        }
    }

    /// The dtype in which each parameter is read, by path. Running statistics are left out.
    fn dtypes(&self, model: &impl Module) -> Result<BTreeMap<String, DType>, Error> {
        let parameters = Parameters::of(model);
        if let Some((path, by)) = parameters.reparameterized.first() {
            return Err(Error::Reparameterized { path: path.clone(), by: by.clone() });
        }
        let kinds: BTreeSet<&str> =
            parameters.places.iter().flat_map(|place| &place.kinds).map(String::as_str).collect();
        if let Some(kind) = self.keep_kinds.iter().find(|kind| !kinds.contains(kind.as_str())) {
            let known = kinds.into_iter().collect::<Vec<_>>().join(", ");
            return Err(Error::NotInModel { name: kind.clone(), known });
        }
        if let Some(path) =
            self.keep_paths.iter().find(|path| !parameters.places.iter().any(|place| place.is_within(path)))
        {
            let known = parameters.places.iter().map(|place| place.path.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Error::NotInModel { name: path.clone(), known });
        }
        let learned = parameters.places.into_iter().filter(|place| !place.is_statistic());
        Ok(learned.map(|place| (place.path.clone(), self.dtype_of(&place))).collect())
    }

    fn dtype_of(&self, place: &Place) -> DType {
        let kept = place.kinds.iter().any(|kind| {
            let kind = kind.as_str();
            ALWAYS_F32.contains(&kind) || self.keep_kinds.contains(kind) || (self.keep_norms && NORMS.contains(&kind))
        });
        let kept = kept || self.keep_paths.iter().any(|path| place.is_within(path));
        if kept { DType::F32 } else { self.compute.dtype() }
    }
}

/// Converts parameters at some paths to other dtypes.
struct Convert {
    dtypes: BTreeMap<String, DType>,
    path: Vec<String>,
}

impl ModuleMapper for Convert {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.dtypes.get(&self.path.join(".")) {
            Some(dtype) => in_dtype(param, *dtype),
            None => param,
        }
    }
}

/// The parameter in `dtype`: a new leaf, since the cast must not be part of a graph.
fn in_dtype<const D: usize>(param: Param<Tensor<D>>, dtype: DType) -> Param<Tensor<D>> {
    if param.dtype() == dtype {
        return param;
    }
    param.map(|tensor| {
        let learned = tensor.is_require_grad();
        tensor.cast(dtype).detach().set_require_grad(learned)
    })
}

/// The model with all parameters in f32, such as one whose file has them in 16 bits. In PyTorch: `model.float()`.
pub fn widened<M: Module>(model: M) -> M {
    struct Widen;
    impl ModuleMapper for Widen {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            in_dtype(param, DType::F32)
        }
    }
    model.map(&mut Widen)
}
