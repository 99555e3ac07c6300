use std::collections::{BTreeSet, HashMap};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::autocast::Autocast;
use crate::walk::{Place, Walk};
use crate::{Error, Precision};

/// Layers whose parameters are never cast. They mix dtypes inside, so that they run in f32 or not at all; the embedding adds
/// up the gradients of all positions of a token, which 16 bits do not hold.
const ALWAYS_F32: [&str; 7] = ["BatchNorm", "Embedding", "Lstm", "BiLstm", "Gru", "BiGru", "Rnn"];
/// Layers that reduce over their input.
const NORMS: [&str; 4] = ["LayerNorm", "RmsNorm", "GroupNorm", "InstanceNorm"];

/// In which precision a model computes, and which of its parameters are kept in f32 all the same.
///
/// A layer computes in the dtype of its parameters; its input must have it too (burn converts nothing by itself). Cast the
/// model's input to [`compute`](Self::compute) and the activations follow. Parameters of batch-norm, of
/// recurrent layers and of embeddings are kept in f32 whatever the policy says: run the first two [`in_f32`](crate::in_f32), and
/// cast what an embedding returns.
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
}

impl Policy {
    /// Computes in `compute` wherever a layer can.
    pub fn new(compute: Precision) -> Self {
        Self { compute, ..Self::default() }
    }

    /// Keeps the parameters under `path` in f32: names of fields joined by dots, `head` or `blocks.0.attn`.
    pub fn keep_path(mut self, path: impl Into<String>) -> Self {
        self.keep_paths.insert(path.into());
        self
    }

    /// Keeps the parameters of modules of this type in f32: `Linear`, or the name of a struct of yours.
    pub fn keep_kind(mut self, kind: impl Into<String>) -> Self {
        self.keep_kinds.insert(kind.into());
        self
    }

    /// Keeps layer, RMS, group and instance norms in f32, for models that run their norms in f32.
    pub fn keep_norms(mut self) -> Self {
        self.keep_norms = true;
        self
    }

    /// The precision that layers compute in.
    pub fn compute(&self) -> Precision {
        self.compute
    }

    /// `model`, whose layers now see their parameters in [`compute`](Self::compute). Stored parameters, gradients,
    /// optimizer state and records stay f32: a record of the result loads into the plain model bit for bit.
    ///
    /// The cast is part of the graph (burn's `Reparameterization`), so that gradients come back in f32. Each layer
    /// that reads a parameter holds a copy of it in 16 bits until the backward pass.
    ///
    /// # Errors
    /// [`Error::NotInModel`] for a path or kind that keeps nothing, [`Error::Reparameterized`] for a model that is under a
    /// policy already.
    pub fn autocast<M: Module>(&self, model: M) -> Result<M, Error> {
        let dtypes = self.dtypes(&model)?;
        if self.compute == Precision::F32 {
            return Ok(model);
        }
        Ok(model.apply_reparameterization(Autocast(|path: &str| dtypes.get(path).copied())))
    }

    /// `model` with its parameters *stored* in [`compute`](Self::compute), for training with
    /// [`MasterWeights`](crate::MasterWeights). Its gradients and records then have that dtype too.
    ///
    /// Load a record first, and store then: a record brings its own dtypes.
    ///
    /// Not for f16: gradients of f16 parameters are f16, where they vanish when the loss scale is taken off (torch
    /// refuses this as "attempting to unscale FP16 gradients").
    ///
    /// # Errors
    /// Those of [`autocast`](Self::autocast), and [`Error::StoresF16`].
    pub fn store<M: Module>(&self, model: M) -> Result<M, Error> {
        struct Store(HashMap<String, DType>, Vec<String>);
        impl ModuleMapper for Store {
            fn enter_module(&mut self, name: &str, _: &str) {
                self.1.push(name.to_owned());
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.1.pop();
            }
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(dtype) = self.0.get(&self.1.join(".")).copied() else { return param };
                param.map(|tensor| {
                    // A new leaf: the cast must not be part of a graph.
                    let learned = tensor.is_require_grad();
                    match tensor.is_autodiff() {
                        true => Tensor::from_inner(tensor.inner().cast(dtype)).set_require_grad(learned),
                        false => tensor.cast(dtype),
                    }
                })
            }
        }
        let dtypes = self.dtypes(&model)?;
        match self.compute {
            Precision::F32 => return Ok(model),
            Precision::F16 => return Err(Error::StoresF16),
            Precision::BF16 => {}
        }
        Ok(model.map(&mut Store(dtypes, vec![])))
    }

    /// The dtype that each parameter is read in, by path; running statistics are left out.
    fn dtypes(&self, model: &impl Module) -> Result<HashMap<String, DType>, Error> {
        let walk = Walk::over(model);
        if let Some((path, by)) = walk.reparameterized.first() {
            return Err(Error::Reparameterized { path: path.clone(), by: by.clone() });
        }
        let kinds: BTreeSet<&str> = walk.places.iter().flat_map(|place| &place.kinds).map(String::as_str).collect();
        if let Some(kind) = self.keep_kinds.iter().find(|kind| !kinds.contains(kind.as_str())) {
            let known = kinds.into_iter().collect::<Vec<_>>().join(", ");
            return Err(Error::NotInModel { name: kind.clone(), known });
        }
        if let Some(path) = self.keep_paths.iter().find(|path| !walk.places.iter().any(|place| place.is_within(path))) {
            let known = walk.places.iter().map(|place| place.path.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Error::NotInModel { name: path.clone(), known });
        }
        let learned = walk.places.into_iter().filter(|place| !place.is_statistic());
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
