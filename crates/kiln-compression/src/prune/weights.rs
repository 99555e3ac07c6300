//! Single weights of a model with masks: pruned, counted, set to zero.

use burn::module::Module;
use serde::{Deserialize, Serialize};

use super::choose::{Weights, magnitude, n_of_m, pruned_count, random};
use super::mask::{MaskedLayer, input_axis, masked_layers, with_masks};
use crate::Error;
use crate::parameters::for_each;

/// The weights among which a sparsity is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// All layers that have masks together: some become sparser than others.
    #[default]
    Global,
    /// Each layer by itself.
    Layer,
}

/// A method that chooses the weights to prune.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pruning {
    /// The weights of the smallest magnitude (Han et al. 2015).
    Magnitude {
        /// The part that is pruned, from 0 to 1.
        sparsity: f64,
        /// The weights among which it is counted.
        #[serde(default)]
        scope: Scope,
    },
    /// A random choice, a function of the seed.
    Random {
        /// The part that is pruned, from 0 to 1.
        sparsity: f64,
        /// The weights among which it is counted.
        #[serde(default)]
        scope: Scope,
        /// Random seed. One seed and one model give one choice.
        seed: u64,
    },
    /// All but the `n` largest of each `m` weights that follow each other along the input dimension (Mishra et al. 2021). An input
    /// dimension that `m` does not divide has its rest left dense, as the three channels of an image.
    NOfM {
        /// The number of weights that are kept, at least 1.
        n: usize,
        /// The size of a group of weights, more than `n`.
        m: usize,
    },
}

impl Pruning {
    /// The smallest magnitudes of all layers together.
    pub fn magnitude(sparsity: f64) -> Self {
        Self::Magnitude { sparsity, scope: Scope::Global }
    }

    /// Two of four weights, which sparse tensor cores multiply.
    pub fn two_of_four() -> Self {
        Self::NOfM { n: 2, m: 4 }
    }

    fn check(&self) -> Result<(), Error> {
        match *self {
            Self::Magnitude { sparsity, .. } | Self::Random { sparsity, .. } if !(0.0..=1.0).contains(&sparsity) => {
                Err(Error::invalid("sparsity", sparsity, "0 to 1"))
            }
            Self::NOfM { n, m } if n == 0 || n >= m => Err(Error::invalid("n", n, "1 to m - 1")),
            _ => Ok(()),
        }
    }

    /// The masks of the layers.
    fn choose(&self, layers: &[Layer]) -> Vec<Vec<bool>> {
        let weights = layers.iter().map(|layer| Weights { values: &layer.values, kept: &layer.masked.kept });
        let weights: Vec<_> = weights.collect();
        let unstructured = |sparsity, scope, seed: Option<u64>| {
            let parts: Vec<&[Weights<'_>]> = match scope {
                Scope::Global => vec![&weights],
                Scope::Layer => weights.chunks(1).collect(),
            };
            let choose = |(part, index): (&[Weights<'_>], u64)| {
                let count = pruned_count(sparsity, part.iter().map(|layer| layer.kept.len()).sum());
                match seed {
                    Some(seed) => random(part, count, seed.wrapping_add(index)),
                    None => magnitude(part, count),
                }
            };
            parts.into_iter().zip(0..).flat_map(choose).collect()
        };
        match *self {
            Self::Magnitude { sparsity, scope } => unstructured(sparsity, scope, None),
            Self::Random { sparsity, scope, seed } => unstructured(sparsity, scope, Some(seed)),
            Self::NOfM { n, m } => {
                let one = |(layer, weights): (&Layer, &Weights<'_>)| {
                    n_of_m(*weights, &layer.masked.site.shape, layer.input_axis, [n, m])
                };
                layers.iter().zip(&weights).map(one).collect()
            }
        }
    }
}

/// The weight of a linear layer or a convolution that has a mask.
struct Layer {
    masked: MaskedLayer,
    input_axis: usize,
    /// The stored values, unless they do not matter.
    values: Vec<f32>,
}

/// Prunes a model that has [`Masks`](crate::Masks). Pruned weights stay pruned: a sparsity below that of the model changes nothing.
///
/// Only weights of linear layers and convolutions are pruned, also where other parameters have masks. The stored values do not change, see
/// [`zero_pruned`](crate::zero_pruned). After each call give the optimizer the masks ([`mask_moments`](crate::mask_moments)).
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::optim::SgdConfig;
/// use burn::tensor::Device;
/// use kiln_compression::{Gradual, Masks, Pruning, mask_moments, prune, sparsity};
///
/// let model = LinearConfig::new(16, 16).init(&Device::flex().autodiff());
/// let masks = Masks::of(&model);
/// let mut model = model.apply_reparameterization(masks);
/// let mut optimizer = SgdConfig::new().init();
/// let schedule = Gradual { from_step: 2, to_step: 10, every: 2, initial: 0.0, final_sparsity: 0.5 };
/// for step in 0..20 {
///     // .. a training step ..
///     if schedule.is_update(step) {
///         model = prune(model, &Pruning::magnitude(schedule.sparsity_at(step)))?;
///         optimizer = mask_moments(optimizer, &model)?;
///     }
/// }
/// assert_eq!(sparsity(&model).total(), 0.5);
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidSetting`] for a sparsity out of range, [`Error::NoMasks`] for a model without masks, [`Error::Reparameterized`] for
/// weights that are stored as codes, whose magnitudes are not those of the weights: materialize the model and mask it then. [`Error::Read`]
/// when a device cannot give the values.
pub fn prune<M: Module>(model: M, how: &Pruning) -> Result<M, Error> {
    how.check()?;
    // Biases and norms have masks for whole channels only.
    let layer = |masked: MaskedLayer| Some(Layer { input_axis: input_axis(&masked.site)?, masked, values: vec![] });
    let mut layers: Vec<Layer> = masked_layers(&model).into_iter().filter_map(layer).collect();
    if layers.is_empty() {
        return Err(Error::NoMasks);
    }
    if !matches!(how, Pruning::Random { .. }) {
        for_each(&model, |parameter| {
            let Some(layer) = layers.iter_mut().find(|layer| layer.masked.site.path == parameter.path) else {
                return Ok(());
            };
            if !parameter.dtype.is_float() {
                return Err(Error::Reparameterized { path: parameter.path.clone() });
            }
            layer.values = parameter.values()?;
            Ok(())
        })?;
    }
    let kept = how.choose(&layers);
    let masks = layers.into_iter().map(|layer| layer.masked.site.path).zip(kept).collect();
    Ok(with_masks(model, masks))
}

/// Uses every weight again. The weights have the values that they had when they were pruned, or zeros after
/// [`zero_pruned`](crate::zero_pruned).
pub fn unprune<M: Module>(model: M) -> M {
    let all = masked_layers(&model).into_iter().map(|layer| (layer.site.path, vec![true; layer.kept.len()])).collect();
    with_masks(model, all)
}

/// The sparsity of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sparsity {
    /// The parameters that have masks, in the order of the model's fields.
    pub layers: Vec<LayerSparsity>,
}

/// The sparsity of one parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSparsity {
    /// The path of the parameter.
    pub path: String,
    /// Elements that are pruned.
    pub pruned: usize,
    /// All elements.
    pub total: usize,
}

impl LayerSparsity {
    /// The part that is pruned, from 0 to 1; 0 for a parameter without elements.
    pub fn ratio(&self) -> f64 {
        self.pruned as f64 / self.total.max(1) as f64
    }
}

impl Sparsity {
    /// The part that is pruned of all parameters that have masks, from 0 to 1.
    pub fn total(&self) -> f64 {
        let [pruned, total] = self.layers.iter().fold([0, 0], |[p, t], layer| [p + layer.pruned, t + layer.total]);
        pruned as f64 / total.max(1) as f64
    }
}

/// The sparsity of a model that has masks, by layer and in total.
pub fn sparsity(model: &impl Module) -> Sparsity {
    let count = |layer: MaskedLayer| LayerSparsity {
        pruned: layer.kept.iter().filter(|kept| !**kept).count(),
        total: layer.kept.len(),
        path: layer.site.path,
    };
    Sparsity { layers: masked_layers(model).into_iter().map(count).collect() }
}
