//! Low-rank adapters: LoRA (Hu et al. 2022) and DoRA (Liu et al. 2024), in peft's form and files.

mod adapter;
mod low_rank;
mod peft;
mod peft_config;

pub use adapter::{Adapter, Factors};
pub use low_rank::LowRank;
pub(crate) use low_rank::names;

// I inputs, O outputs, R rank

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Module, Param, Reparameterization};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use crate::Error;
use crate::parameters::{Edit, Item, Place, dense, edited, walk};
use adapter::{check_bases, mismatch};

/// Rank, alpha and kind (LoRA or DoRA) that all adapters of a model share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterKind {
    /// The rank.
    pub rank: usize,
    /// The product of the factors is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Whether the magnitude of each output is trained as well.
    pub dora: bool,
}

/// The adapters of a model, apart from the model: a fine-tuned task in a few hundred kilobytes.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
/// use kiln_compression::{Adapters, LowRank};
///
/// #[derive(Module, Debug)]
/// struct Model {
///     up: Linear,
/// }
///
/// let plain = Model { up: LinearConfig::new(8, 32).init(&Device::flex()) };
/// let trained = LowRank::new(2, 4.0, ["up"])?.attach(plain.clone())?;
///
/// let adapters = Adapters::of(&trained)?;
/// let directory = tempfile::tempdir()?;
/// adapters.save(directory.path(), |path| path.trim_end_matches(".weight").to_owned())?;
///
/// let adapters = Adapters::load(directory.path(), |layer| format!("{layer}.weight"))?;
/// let served = adapters.merge_into(plain.clone())?;
/// let trained_further = adapters.attach_to(plain)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adapters {
    by_path: Arc<BTreeMap<String, Factors>>,
}

impl Adapters {
    /// The adapters of `model`, also of those inside of a [`Nest`](crate::Nest).
    ///
    /// # Errors
    /// [`Error::Adapter`] when the device cannot give the values, or the model has none.
    pub fn of<M: Module>(model: &M) -> Result<Self, Error> {
        let (mut found, mut failed) = (BTreeMap::<String, BTreeMap<String, TensorData>>::new(), None);
        walk(model, |place, item| {
            let (Item::Float(param), Some(part)) = (item, part(place)) else { return };
            let (path, part) = (place.parameter(), part.to_owned());
            match param.value().try_into_vec_as::<f32>() {
                Ok(values) => {
                    found.entry(path).or_default().insert(part, TensorData::new(values, param.shape()));
                }
                Err(reason) => drop(failed.get_or_insert(mismatch(&path, reason.to_string()))),
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let mut by_path = BTreeMap::new();
        for (path, mut parts) in found {
            let scale = parts.remove("scale").and_then(|data| data.iter::<f32>().next());
            let (Some(a), Some(b), Some(scale)) = (parts.remove("a"), parts.remove("b"), scale) else {
                return Err(mismatch(&path, "a part of it is missing"));
            };
            by_path.insert(path, Factors { a, b, magnitude: parts.remove("magnitude"), scale });
        }
        match by_path.is_empty() {
            true => Err(mismatch("", "the model has no adapters")),
            false => Ok(Self { by_path: Arc::new(by_path) }),
        }
    }

    /// The values by path of the parameter, as `h.0.attn.c_attn.weight`.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Factors)> {
        self.by_path.iter().map(|(path, factors)| (path.as_str(), factors))
    }

    /// `plain` with these adapters attached and everything else frozen, to be trained further.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] for an adapter of a parameter that `plain` does not have, [`Error::Adapter`] for one of another shape,
    /// and for a model that has adapters attached, [`Error::Reparameterized`] for a weight that something else is attached to.
    pub fn attach_to<M: Module>(&self, plain: M) -> Result<M, Error> {
        self.check_bases(&plain)?;
        if self.by_path.is_empty() {
            return Ok(plain);
        }
        // Ranks and scales are those of the adapters that are loaded.
        let low_rank = self.begun(LowRank::new(1, 1.0, self.by_path.keys())?);
        Ok(plain.apply_reparameterization(low_rank))
    }

    /// `adapters` that start with these values. Each of these has a target there; rank, scale and magnitude are theirs.
    pub fn begun(&self, adapters: LowRank) -> LowRank {
        adapters.with_factors(self.by_path.clone())
    }

    /// What all of the adapters are.
    ///
    /// # Errors
    /// [`Error::Adapter`] unless they have one rank, one scale and one kind, and where there are none.
    pub fn kind(&self) -> Result<AdapterKind, Error> {
        let Some((first_path, first)) = self.iter().next() else {
            return Err(mismatch("", "there are none, expected at least one"));
        };
        let of = |factors: &Factors| (factors.sizes()[1], factors.scale, factors.magnitude.is_some());
        if let Some((path, _)) = self.iter().find(|(_, factors)| of(factors) != of(first)) {
            return Err(mismatch(path, format!("it has another rank, scale or kind than '{first_path}'")));
        }
        let (rank, scale, dora) = of(first);
        Ok(AdapterKind { rank, alpha: f64::from(scale * rank as f32), dora })
    }

    /// `model`, to which adapters are attached, with these values in their place. The identifiers of the parameters stay, and with them the
    /// state of an optimizer.
    ///
    /// # Errors
    /// [`Error::Adapter`] unless the adapters of `model` are at the same paths and of the same ranks.
    pub fn load_into<M: Module>(&self, model: M) -> Result<M, Error> {
        let present = Self::of(&model)?;
        for (path, factors) in self.iter() {
            let Some(found) = present.by_path.get(path) else {
                return Err(mismatch(path, "the model has no adapter there"));
            };
            let (expected, given) = (found.sizes(), factors.sizes());
            if expected != given {
                return Err(mismatch(
                    path,
                    format!("inputs, rank and outputs are {given:?}, in the model {expected:?}"),
                ));
            }
        }
        self.put(model)
    }

    /// `plain` with these adapters added to its weights: W + s A B, or DoRA's rescaled sum. Weights that burn has quantised are dense
    /// afterwards.
    ///
    /// A weight under a mask, in packed codes, or under the simulation of codes or a cast must be merged with them first
    /// ([`Module::materialize`]): adapters that were trained on such a weight were trained on the value that its layer reads.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] for an adapter of a parameter that `plain` does not have, [`Error::Adapter`] for one of another shape and
    /// for a model that has adapters attached, [`Error::Reparameterized`] for a weight that something else is attached to.
    pub fn merge_into<M: Module>(&self, plain: M) -> Result<M, Error> {
        self.check_bases(&plain)?;
        Ok(edited(plain, &mut Merge { adapters: self, sign: 1.0 }))
    }

    /// `merged` with these adapters subtracted from its weights. The difference from the weights before the merge is one rounding of the
    /// merge and one of the subtraction: at most one unit in the last place of the largest of the three numbers for each weight,
    /// so 1e-7 of it in f32.
    ///
    /// # Errors
    /// [`Error::Adapter`] for a DoRA, whose norms cannot be computed from the merged weights; otherwise as [`merge_into`](Self::merge_into).
    pub fn unmerge_from<M: Module>(&self, merged: M) -> Result<M, Error> {
        self.check_bases(&merged)?;
        if let Some((path, _)) = self.iter().find(|(_, factors)| factors.magnitude.is_some()) {
            return Err(mismatch(path, "a DoRA cannot be subtracted: keep the plain weights"));
        }
        Ok(edited(merged, &mut Merge { adapters: self, sign: -1.0 }))
    }

    fn check_bases<M: Module>(&self, model: &M) -> Result<(), Error> {
        check_bases(&self.by_path, model)
    }

    /// The values in place of those of the adapters that `model` has.
    fn put<M: Module>(&self, model: M) -> Result<M, Error> {
        let mut writing = Write { adapters: self, written: BTreeMap::new() };
        let model = edited(model, &mut writing);
        for (path, factors) in self.iter() {
            let expected = 3 + usize::from(factors.magnitude.is_some());
            if writing.written.remove(path) != Some(expected) {
                return Err(mismatch(path, "one has a magnitude (DoRA), the other has not"));
            }
        }
        match writing.written.into_keys().next() {
            Some(path) => Err(mismatch(&path, "the model has one there, of which no values are given")),
            None => Ok(model),
        }
    }
}

/// Which part of an adapter a visitor is at.
fn part(place: &Place) -> Option<&str> {
    (place.is_inner() && place.kind() == "Adapter").then(|| place.field())
}

/// Gives the adapters of a model these values.
struct Write<'a> {
    adapters: &'a Adapters,
    /// How many parts of the adapter at a path got a value.
    written: BTreeMap<String, usize>,
}

impl Edit for Write<'_> {
    fn float<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(part) = part(place) else { return param };
        let path = place.parameter();
        let factors = self.adapters.by_path.get(&path);
        let written = self.written.entry(path).or_default();
        let Some(factors) = factors else { return param };
        // A magnitude without a value is counted as well, so that the number of parts does not fit.
        *written += 1;
        let data = match part {
            "a" => factors.a.clone(),
            "b" => factors.b.clone(),
            "scale" => TensorData::from([factors.scale]),
            _ => match &factors.magnitude {
                Some(magnitude) => magnitude.clone(),
                None => return param,
            },
        };
        let (dtype, device, trained) = (param.dtype(), param.lazy_device(), param.is_require_grad());
        param.map(|_| {
            let value = Tensor::<D>::from_data(data, (&device, DType::F32)).cast(FloatDType::from(dtype)).detach();
            if trained { value.require_grad() } else { value }
        })
    }
}

/// Adds the products of adapters, times `sign`, to the weights of a model.
struct Merge<'a> {
    adapters: &'a Adapters,
    sign: f32,
}

impl Edit for Merge<'_> {
    fn float<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let factors = self.adapters.by_path.get(&place.parameter());
        let Some(factors) = factors.filter(|_| !place.is_inner()) else { return param };
        let trained = param.is_require_grad();
        let factors = Factors { scale: self.sign * factors.scale, ..factors.clone() };
        param.map(|weight| {
            let merged = factors.adapter(&weight.device()).apply(dense(weight.detach())).detach();
            if trained { merged.require_grad() } else { merged }
        })
    }
}
