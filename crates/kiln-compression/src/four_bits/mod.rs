//! Frozen weights that are codes of four bits in memory.

mod coded;

pub use coded::FourBitLevels;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use burn::module::{Module, Param, ParamId, Reparameterization, Reparameterizer};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_operations::{FOUR_BITS, FourBitWeight, four_bit_lengths, is_capture};

use crate::Error;
use crate::lora::names;
use crate::parameters::{Item, Site, on_device, sites, walk};
use coded::Coded;

/// Which weights of a model are kept in codes of four bits, two in a byte, with a scale of eight bits for each 64 of them (QLoRA, Dettmers et
/// al. 2023, arXiv 2305.14314): 0.516 bytes a weight. Codes and scales are those of bitsandbytes with double quantisation.
///
/// The weights are those of all linear layers but [`skip`](Self::skip). They are not trained; adapters are what is trained beside them. Layers
/// of kiln-layers widen the codes of one layer at a time, forward and backward; others read the weight in f32.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
/// use kiln_compression::{FourBits, LowRank, Nest};
///
/// #[derive(Module, Debug)]
/// struct Model {
///     up: Linear,
///     head: Linear,
/// }
///
/// let device = Device::flex();
/// let model = Model { up: LinearConfig::new(64, 256).init(&device), head: LinearConfig::new(256, 8).init(&device) };
/// let codes = FourBits::default().skip(["head"]).of(&model, |_| Ok(None))?;
/// assert_eq!(codes.bytes(), 64 * 256 / 2 + 64 * 256 / 64 + 4 * 274); // codes, scales, and levels
/// let adapters = LowRank::new(4, 8.0, ["up"])?;
/// let model = model.apply_reparameterization(Nest::new(codes, adapters));
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FourBits {
    levels: FourBitLevels,
    skip: Vec<String>,
}

impl FourBits {
    /// With these levels of codes.
    #[must_use]
    pub fn levels(mut self, levels: FourBitLevels) -> Self {
        self.levels = levels;
        self
    }

    /// Leaves out layers, which are named as the targets of [`LowRank::new`](crate::LowRank::new).
    #[must_use]
    pub fn skip<T: Into<String>>(mut self, layers: impl IntoIterator<Item = T>) -> Self {
        self.skip.extend(layers.into_iter().map(Into::into));
        self
    }

    /// The codes of the weights of `model`, to be attached. `values` gives the values `[inputs, outputs]` of the weight at a path from elsewhere,
    /// such as a file, one weight after the other. Where it gives `None`, the weight's own values are coded, which burn initialises if it has not
    /// yet. A model on the device for recordings has [codes without a meaning](Self::shapes_of).
    ///
    /// # Errors
    /// [`Error::Reparameterized`] for a weight that something is attached to, [`Error::ShapeMismatch`] for values of another shape,
    /// [`Error::Read`] for values that cannot be read, [`Error::NotFinite`] for those that are infinite or not a number, and those of `values`.
    pub fn of<M: Module>(
        &self,
        model: &M,
        mut values: impl FnMut(&str) -> Result<Option<TensorData>, Error>,
    ) -> Result<FourBitWeights, Error> {
        let mut weights = self.shapes_of(model)?;
        let mut result = Ok(());
        walk(model, |place, item| {
            let (Item::Float(param), true) = (item, result.is_ok()) else { return };
            let path = place.parameter();
            let Some(shape) = weights.shapes.get(&path).filter(|_| !place.is_inner()) else { return };
            if is_capture(&param.device()) {
                return;
            }
            let own = || param.data().map_err(|reason| Error::Read { path: path.clone(), reason });
            let data = values(&path).and_then(|data| data.map_or_else(own, Ok));
            match data.and_then(|data| self.coded(&path, *shape, data)) {
                Ok(coded) => drop(weights.coded.insert(path, coded)),
                Err(error) => result = Err(error),
            }
        });
        result.map(|()| weights)
    }

    /// Codes without a meaning in the place of the weights of `model`, of which none is initialised: for a model whose values are loaded from a
    /// record of a model with codes, or that is only recorded.
    ///
    /// # Errors
    /// [`Error::Reparameterized`].
    pub fn shapes_of<M: Module>(&self, model: &M) -> Result<FourBitWeights, Error> {
        let chosen = self.chosen(model);
        chosen.iter().try_for_each(Site::expect_plain)?;
        let shapes = chosen.into_iter().map(|site| (site.path, [site.shape[0], site.shape[1]])).collect();
        Ok(FourBitWeights { settings: self.clone(), shapes, coded: BTreeMap::new() })
    }

    /// The weights of the linear layers that are not left out.
    fn chosen<M: Module>(&self, model: &M) -> Vec<Site> {
        let is_skipped = |path: &str| self.skip.iter().any(|skip| names(skip, path));
        let is_weight = |site: &Site| site.kind == "Linear" && site.shape.len() == 2 && !is_skipped(&site.path);
        sites(model).into_iter().filter(is_weight).collect()
    }

    fn coded(&self, path: &str, [inputs, outputs]: [usize; 2], data: TensorData) -> Result<Coded, Error> {
        if data.shape()[..] != [inputs, outputs] {
            let (found, expected) = (data.shape().to_vec(), vec![inputs, outputs]);
            return Err(Error::ShapeMismatch { path: path.to_owned(), found, expected });
        }
        let unread = |reason: String| Error::Read { path: path.to_owned(), reason };
        let values = data.convert_dtype(DType::F32).try_into_vec::<f32>();
        let values = values.map_err(|reason| unread(reason.to_string()))?;
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::NotFinite { what: "a weight of a layer", value: value.to_string() });
        }
        Ok(Coded::of(&transposed(&values, inputs, outputs), self.levels))
    }
}

/// The transposed matrix of `[rows, columns]` values.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    /// Rows and columns that are read together.
    const TILE: usize = 32;
    let mut made = vec![0.0; values.len()];
    for first_row in (0..rows).step_by(TILE) {
        for first_column in (0..columns).step_by(TILE) {
            for column in first_column..columns.min(first_column + TILE) {
                for row in first_row..rows.min(first_row + TILE) {
                    made[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    made
}

/// The codes of a model's weights, which it attaches as a reparameterizer. Each is used once.
#[derive(Clone, PartialEq)]
pub struct FourBitWeights {
    settings: FourBits,
    /// `[inputs, outputs]` by path.
    shapes: BTreeMap<String, [usize; 2]>,
    coded: BTreeMap<String, Coded>,
}

impl FourBitWeights {
    /// The paths of the weights.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.shapes.keys().map(String::as_str)
    }

    /// Bytes of codes, scales and levels.
    pub fn bytes(&self) -> u64 {
        let bytes = |[inputs, outputs]: &[usize; 2]| {
            four_bit_lengths(inputs * outputs).into_iter().map(|count| 4 * count as u64).sum::<u64>()
        };
        self.shapes.values().map(bytes).sum()
    }

    /// The norm of each output's weights by path, for the magnitudes of a DoRA ([`LowRank::with_magnitudes`](crate::LowRank::with_magnitudes)).
    /// Empty without values.
    pub fn norms(&self) -> BTreeMap<String, Vec<f32>> {
        let norm = |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
        let norms = |(path, coded): (&String, &Coded)| {
            let [inputs, outputs] = *self.shapes.get(path)?;
            Some((path.clone(), coded.values(inputs * outputs).chunks(inputs.max(1)).map(norm).collect()))
        };
        self.coded.iter().filter_map(norms).collect()
    }
}

impl fmt::Debug for FourBitWeights {
    /// The settings, by which a checkpoint knows the run that it belongs to.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

fn tensors(Coded { levels, codes, scales }: Coded, device: &Device) -> FourBitWeight {
    let counts = [levels.len(), codes.len(), scales.len()];
    FourBitWeight {
        levels: on_device(TensorData::new(levels, [counts[0]]), device),
        codes: on_device(TensorData::new(codes, [counts[1]]), device),
        scales: on_device(TensorData::new(scales, [counts[2]]), device),
    }
}

impl Reparameterizer for FourBitWeights {
    type Reparam = FourBitCodes;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<FourBitCodes>) {
        let Some([inputs, outputs]) = self.shapes.get(path).copied().filter(|_| D == 2) else { return (param, None) };
        let device = param.lazy_device();
        let weight = match self.coded.remove(path) {
            Some(coded) => device.memory_persistent_allocations(coded, |coded| tensors(coded, &device)),
            None if is_capture(&device) => {
                let [levels, codes, scales] = four_bit_lengths(inputs * outputs);
                FourBitWeight {
                    levels: Tensor::zeros([levels], (&device, DType::F32)),
                    codes: Tensor::zeros([codes], (&device, DType::I32)),
                    scales: Tensor::zeros([scales], (&device, DType::I32)),
                }
            }
            None => tensors(Coded::empty(inputs * outputs), &device),
        };
        let codes = FourBitCodes {
            levels: Param::from_tensor(weight.levels).set_require_grad(false),
            codes: Param::initialized(ParamId::new(), weight.codes),
            scales: Param::initialized(ParamId::new(), weight.scales),
        };
        (placeholder(param, &device), Some(codes))
    }
}

/// The codes of a weight. [`FourBitWeights`] attaches it.
#[derive(Module, Debug)]
pub struct FourBitCodes {
    /// The levels of codes and of scales' codes, the offset of scales, and the scale of each group of scales.
    pub levels: Param<Tensor<1>>,
    /// Codes, eight in a word.
    pub codes: Param<Tensor<1, Int>>,
    /// Codes of scales, four in a word.
    pub scales: Param<Tensor<1, Int>>,
}

impl Reparameterization for FourBitCodes {
    const NAME: &'static str = FOUR_BITS;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let dims = base.dims();
        let weight = FourBitWeight { levels: self.levels.val(), codes: self.codes.val(), scales: self.scales.val() };
        Tensor::from_dispatch(weight.widened([dims[0], dims[1]], base.dtype()).into_dispatch())
    }
}

/// A frozen parameter that has the shape of `param` alone: a view of one number on `device`. Dimensions of a weight are read in many places; it
/// takes no memory for values.
pub fn placeholder<const D: usize>(param: Param<Tensor<D>>, device: &Device) -> Param<Tensor<D>> {
    let view = Tensor::<D>::zeros([1; D], (device, DType::F32)).expand(param.lazy_shape()).detach();
    Param::initialized(param.id, view).set_require_grad(false)
}

/// The parameters whose values are in codes that are attached to them. What is stored for them has a shape alone, and belongs in no record.
pub fn placeholders<M: Module>(model: &M) -> BTreeSet<ParamId> {
    let (mut last, mut found) = (None, BTreeSet::new());
    walk(model, |place, item| match item {
        Item::Attached(FOUR_BITS) => found.extend(last),
        Item::Float(param) if !place.is_inner() => last = Some(param.id()),
        _ => {}
    });
    found
}
