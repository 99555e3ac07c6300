//! Adapters of a model's weights, and where they are attached.
// I inputs, O outputs, R rank

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use burn::module::{Module, Param, Reparameterizer};
use burn::tensor::{DType, Distribution, FloatDType, Tensor, TensorData};

use super::adapter::{Adapter, Factors, check_bases, mismatch, norms};
use crate::Error;
use crate::parameters::{Item, Site, dense, sites, walk};

/// Attaches an [`Adapter`] to the weights of chosen layers and freezes everything else.
///
/// The chosen weights are parameters of rank 2 in burn's layout of linear layers, `[inputs, outputs]`. GPT-2's `Conv1D` has the same
/// layout; peft calls it `fan_in_fan_out`. A starts from the uniform distribution in ±1/√inputs and B at 0, as in peft, so the model
/// computes what it did before. A is drawn from the device's generator: seed the device for a reproducible start.
///
/// An adapter may be one part of a [`Nest`](crate::Nest); [`check`](Self::check) then does what [`attach`](Self::attach) would.
/// [`Module::materialize`] merges adapters into plain weights.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use kiln_compression::LowRank;
///
/// #[derive(Module, Debug)]
/// struct Model {
///     up: Linear,
///     down: Linear,
/// }
///
/// let device = Device::flex().autodiff();
/// let plain = Model { up: LinearConfig::new(8, 32).init(&device), down: LinearConfig::new(32, 8).init(&device) };
/// let model = LowRank::new(2, 4.0, ["up"])?.attach(plain)?;
///
/// let x = Tensor::<2>::ones([1, 8], &device);
/// let gradients = model.down.forward(model.up.forward(x)).sum().backward();
/// assert!(model.down.weight.val().grad(&gradients).is_none());
/// let plain = model.materialize();
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct LowRank {
    rank: usize,
    scale: f64,
    targets: Vec<String>,
    dora: bool,
    initial: Initial,
}

/// Initial values by the path of the parameter, where they are not the usual ones.
#[derive(Clone, Default, PartialEq)]
struct Initial {
    /// Norms that are not those of the stored weights.
    magnitudes: BTreeMap<String, Vec<f32>>,
    /// All values.
    factors: Arc<BTreeMap<String, Factors>>,
}

impl fmt::Debug for LowRank {
    /// Without initial values: a run's checkpoints know it by the debug text of its settings, and a run that goes on has the values from a
    /// checkpoint.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, scale, targets, dora, initial: _ } = self;
        let mut text = f.debug_struct("LowRank");
        text.field("rank", rank).field("scale", scale).field("targets", targets).field("dora", dora);
        text.field("magnitudes", &format_args!("{{}}")).finish()
    }
}

impl LowRank {
    /// Adapters of rank `rank`, whose product is multiplied by `alpha / rank`, for the layers that `targets` name. A target is the end
    /// of a layer's path from a dot on, as peft's `target_modules`: `c_attn` names `h.0.attn.c_attn` and `h.1.attn.c_attn`. The whole path
    /// of a parameter, `h.0.attn.c_attn.weight`, names only this parameter.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a rank of 0, an alpha that is not finite, or no target.
    pub fn new<T: Into<String>>(rank: usize, alpha: f64, targets: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let targets: Vec<String> = targets.into_iter().map(Into::into).collect();
        if rank == 0 {
            return Err(Error::invalid("the rank of adapters", 0, "at least 1"));
        }
        if !alpha.is_finite() {
            return Err(Error::invalid("alpha", alpha, "a finite number"));
        }
        if targets.is_empty() {
            return Err(Error::invalid("the number of targets", 0, "at least 1"));
        }
        Ok(Self { rank, scale: alpha / rank as f64, targets, dora: false, initial: Initial::default() })
    }

    /// Whether each output has a trained magnitude as well (DoRA). The magnitudes start as the norms of the stored weights. Under a
    /// [`Nest`](crate::Nest) whose first part changes these weights, as [`Packing`](crate::Packing) does, they do not fit; there use
    /// [`with_magnitudes_of`](Self::with_magnitudes_of).
    pub fn with_dora(mut self, dora: bool) -> Self {
        self.dora = dora;
        self
    }

    /// A DoRA whose magnitudes start as the norms of the weights that the layers of `model` read. `model` computes what the first part of
    /// a [`Nest`](crate::Nest) will give to the adapter: for a [`Packing`](crate::Packing) it is the packed model, or that of
    /// [`QuantizedModel::apply`](crate::QuantizedModel::apply), for masks the masked one. A mask that prunes later changes the norms without the
    /// magnitudes; prune before this.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] for a target that names no weight of rank 2, [`Error::Read`] when a device cannot give its values.
    pub fn with_magnitudes_of<M: Module>(self, model: &M) -> Result<Self, Error> {
        self.chosen(model)?;
        let (mut magnitudes, mut failed) = (BTreeMap::new(), None);
        // The stored weights of a materialised model are those that layers read.
        walk(&model.clone().materialize(), |place, item| {
            let (Item::Float(param), path) = (item, place.parameter()) else { return };
            let [inputs, outputs] = param.shape()[..] else { return };
            if failed.is_some() || place.is_inner() || !self.is_target(&path) {
                return;
            }
            let weight = param.value().cast(FloatDType::F32).reshape([inputs, outputs]);
            match norms(weight).try_into_vec_as::<f32>() {
                Ok(norms) => drop(magnitudes.insert(path, norms)),
                Err(reason) => failed = Some(Error::Read { path, reason: reason.to_string() }),
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(self.with_magnitudes(magnitudes)),
        }
    }

    /// A DoRA whose magnitudes start as these, by the path of the parameter: the norms of weights that the model does not have as values, as those
    /// of [`FourBitWeights::norms`](crate::FourBitWeights::norms).
    pub fn with_magnitudes(self, magnitudes: BTreeMap<String, Vec<f32>>) -> Self {
        Self { initial: Initial { magnitudes, ..self.initial }, dora: true, ..self }
    }

    /// Adapters that start with these values, by the path of the parameter, for each of which there is a target. Rank, scale and magnitude
    /// are then theirs.
    pub(super) fn with_factors(self, factors: Arc<BTreeMap<String, Factors>>) -> Self {
        Self { initial: Initial { factors, ..self.initial }, ..self }
    }

    /// `plain` with adapters.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] for a target that names no weight of rank 2, [`Error::Adapter`] for initial values of another shape,
    /// [`Error::Reparameterized`] for a weight that something is attached to: a parameter of burn keeps what it has, and the adapter would be
    /// lost.
    pub fn attach<M: Module>(&self, plain: M) -> Result<M, Error> {
        self.check(&plain)?;
        Ok(plain.apply_reparameterization(self.clone()))
    }

    /// Checks that each target names a weight of `model`, that nothing is attached to these weights, and that they have the shapes that the values
    /// are made for which the adapters start with.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach).
    pub fn check<M: Module>(&self, model: &M) -> Result<(), Error> {
        let factors = &self.initial.factors;
        if !factors.is_empty() {
            check_bases(factors, model)?;
        }
        if let Some(path) = factors.keys().find(|path| !self.is_target(path)) {
            let targets = self.targets.join(", ");
            return Err(mismatch(path, format!("there are values for it, and no target names it: {targets}")));
        }
        self.chosen(model)?.iter().try_for_each(Site::expect_plain)
    }

    /// The weights of `model` that the targets name, at least one each.
    fn chosen(&self, model: &impl Module) -> Result<Vec<Site>, Error> {
        let mut matrices: Vec<Site> = sites(model).into_iter().filter(|site| site.shape.len() == 2).collect();
        matrices.sort_by(|a, b| a.path.cmp(&b.path));
        match self.targets.iter().find(|target| !matrices.iter().any(|site| names(target, &site.path))) {
            Some(target) => Err(Error::unknown(target, matrices.iter().map(|site| &site.path))),
            None => Ok(matrices.into_iter().filter(|site| self.is_target(&site.path)).collect()),
        }
    }

    fn is_target(&self, path: &str) -> bool {
        self.targets.iter().any(|target| names(target, path))
    }
}

impl Reparameterizer for LowRank {
    type Reparam = Adapter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Adapter>) {
        let shape = param.lazy_shape();
        let param = param.set_require_grad(false);
        if D != 2 || !self.is_target(path) {
            return (param, None);
        }
        let [inputs, outputs] = [shape[0], shape[1]];
        let device = param.lazy_device();
        if let Some(factors) = self.initial.factors.get(path) {
            let adapter = device.memory_persistent_allocations((), |()| factors.adapter(&device));
            return (param, Some(adapter));
        }
        let bound = 1.0 / (inputs as f64).sqrt();
        // They live as long as the model: apart from the pools of temporaries, as burn's own parameters.
        let (a, b) = device.memory_persistent_allocations((), |()| {
            let a = Tensor::<2>::random([inputs, self.rank], Distribution::Uniform(-bound, bound), &device);
            let b = Tensor::<2>::zeros([self.rank, outputs], &device);
            (a.cast(FloatDType::F32), b.cast(FloatDType::F32))
        });
        let magnitude = self.dora.then(|| {
            let norms = match self.initial.magnitudes.get(path).filter(|norms| norms.len() == outputs) {
                Some(norms) => Tensor::from_data(TensorData::new(norms.clone(), [outputs]), (&device, DType::F32)),
                None => norms(dense(param.base()).cast(FloatDType::F32).reshape([inputs, outputs])),
            };
            Param::from_tensor(norms.detach())
        });
        let scale = Tensor::<1>::from_data([self.scale as f32], &device);
        let adapter = Adapter {
            a: Param::from_tensor(a),
            b: Param::from_tensor(b),
            magnitude,
            scale: Param::from_tensor(scale.cast(FloatDType::F32)).set_require_grad(false),
        };
        (param, Some(adapter))
    }
}

/// Whether `target` names the parameter at `path`.
pub(crate) fn names(target: &str, path: &str) -> bool {
    let layer = path.rsplit_once('.').map_or("", |(layer, _)| layer);
    let ends = layer.strip_suffix(target).is_some_and(|front| front.is_empty() || front.ends_with('.'));
    path == target || ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_end_of_a_layers_path() {
        assert!(names("c_attn", "h.0.attn.c_attn.weight"));
        assert!(names("attn.c_attn", "h.0.attn.c_attn.weight"));
        assert!(names("h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight"));
        assert!(names("up", "up.weight"));
        assert!(!names("attn", "h.0.attn.c_attn.weight"));
        assert!(!names("weight", "h.0.attn.c_attn.weight"));
        assert!(!names("0.attn.c_attn.weight", "h.0.attn.c_attn.weight"));
        assert!(!names("", "h.0.attn.c_attn.weight"));
    }

    #[test]
    fn the_text_by_which_checkpoints_know_it_has_no_values() {
        let text = format!("{:?}", LowRank::new(2, 4.0, ["up"]).unwrap());
        assert_eq!(text, r#"LowRank { rank: 2, scale: 2.0, targets: ["up"], dora: false, magnitudes: {} }"#);
    }

    #[test]
    fn settings_that_make_no_adapter_are_errors() {
        assert!(LowRank::new(0, 1.0, ["a"]).is_err());
        assert!(LowRank::new(1, f64::NAN, ["a"]).is_err());
        assert!(LowRank::new(1, 1.0, Vec::<String>::new()).is_err());
    }
}
