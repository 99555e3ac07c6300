//! Single weights of a model with masks: pruned, counted, set to zero.

use std::collections::BTreeMap;

use burn::module::Module;
use serde::{Deserialize, Serialize};

use super::choose::{Weights, magnitude, n_of_m, pruned_count, random};
use super::layers::{MaskedLayer, Replace, Zero, masked_layers};
use crate::Error;
use crate::parameters::Place;

/// Over what a sparsity is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// All layers that have masks together: some become sparser than others.
    #[default]
    Global,
    /// Each layer by itself.
    Layer,
}

/// Which weights are pruned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pruning {
    /// Those of the smallest magnitude (Han et al. 2015).
    Magnitude {
        /// The part that is pruned, from 0 to 1.
        sparsity: f64,
        /// Over what it is counted.
        #[serde(default)]
        scope: Scope,
    },
    /// A random choice, a function of the seed.
    Random {
        /// The part that is pruned, from 0 to 1.
        sparsity: f64,
        /// Over what it is counted.
        #[serde(default)]
        scope: Scope,
        /// Where the random numbers start: a seed and a model give one choice.
        seed: u64,
    },
    /// All but the `n` largest of each `m` weights that follow each other along the input dimension (Mishra et al. 2021). An input
    /// dimension that `m` does not divide has its rest left dense, as the three channels of an image.
    NOfM {
        /// How many are kept; 1 or more.
        n: usize,
        /// Of how many; more than `n`.
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
                Err(Error::InvalidSetting { what: "sparsity", value: sparsity.to_string(), expected: "0 to 1" })
            }
            Self::NOfM { n, m } if n == 0 || n >= m => {
                Err(Error::InvalidSetting { what: "n", value: n.to_string(), expected: "1 to m - 1" })
            }
            _ => Ok(()),
        }
    }

    /// The masks of the layers.
    fn choose(&self, layers: &[MaskedLayer]) -> Vec<Vec<bool>> {
        let weights: Vec<_> = layers.iter().map(|layer| Weights { values: &layer.base, kept: &layer.kept }).collect();
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
                let one = |(layer, weights): (&MaskedLayer, &Weights<'_>)| match layer.input_axis {
                    Some(axis) => n_of_m(*weights, &layer.shape, axis, [n, m]),
                    None => layer.kept.clone(),
                };
                layers.iter().zip(&weights).map(one).collect()
            }
        }
    }
}

/// Prunes a model that has [`Masks`](crate::Masks). What is pruned stays pruned: a sparsity below that of the model changes nothing.
///
/// Only weights of linear layers and convolutions are pruned, also where other parameters have masks. The stored values do not change, see
/// [`zero_pruned`]. After each call give the optimizer the masks ([`mask_moments`](crate::mask_moments)).
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
/// weights that are stored as codes, whose magnitudes are not those of the weights: materialize the model and mask it then.
pub fn prune<M: Module>(model: M, how: &Pruning) -> Result<M, Error> {
    how.check()?;
    let mut layers = masked_layers(&model, true);
    // Biases and norms have masks for whole channels only.
    layers.retain(|layer| layer.input_axis.is_some());
    if layers.is_empty() {
        return Err(Error::NoMasks);
    }
    if let Some(packed) = layers.iter().find(|layer| layer.is_packed && !matches!(how, Pruning::Random { .. })) {
        return Err(Error::Reparameterized { path: packed.path.clone() });
    }
    let kept = how.choose(&layers);
    let kept = layers.into_iter().map(|layer| layer.path).zip(kept).collect();
    Ok(model.map(&mut Replace { place: Place::default(), kept }))
}

/// Keeps every weight again. The weights have the values that they had when they were pruned, or zeros after [`zero_pruned`].
pub fn unprune<M: Module>(model: M) -> M {
    let all = masked_layers(&model, false).into_iter().map(|layer| (layer.path, vec![true; layer.kept.len()]));
    let kept = all.collect();
    model.map(&mut Replace { place: Place::default(), kept })
}

/// The masks of a model by the path of the parameter: row-major, true where a weight is kept.
pub fn masks_of(model: &impl Module) -> BTreeMap<String, Vec<bool>> {
    masked_layers(model, false).into_iter().map(|layer| (layer.path, layer.kept)).collect()
}

/// Replaces the masks at these paths, as [`masks_of`] gives them. Masks at other paths stay as they are.
///
/// # Errors
/// [`Error::UnknownParameter`] for a path without a mask, [`Error::InvalidSetting`] for a mask of another length.
pub fn set_masks<M: Module>(model: M, masks: BTreeMap<String, Vec<bool>>) -> Result<M, Error> {
    let known = masks_of(&model);
    for (path, mask) in &masks {
        let Some(own) = known.get(path) else {
            let known = known.into_keys().collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownParameter { path: path.clone(), known });
        };
        if own.len() != mask.len() {
            let value = format!("{} for '{path}' of {} elements", mask.len(), own.len());
            return Err(Error::InvalidSetting {
                what: "the length of a mask",
                value,
                expected: "one for each element",
            });
        }
    }
    Ok(model.map(&mut Replace { place: Place::default(), kept: masks }))
}

/// Sets the stored values to zero where a model is pruned. What the model computes does not change: where a mask comes after another part of
/// a [`Nest`](crate::Nest), which may compute other elements from the pruned ones, the stored values stay.
pub fn zero_pruned<M: Module>(model: M) -> M {
    let layers = masked_layers(&model, false).into_iter().filter(|layer| layer.is_first);
    let kept = layers.map(|layer| (layer.path, layer.kept)).collect();
    model.map(&mut Zero { place: Place::default(), kept })
}

/// How much of a model is pruned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sparsity {
    /// The parameters that have masks, in the order of the model's fields.
    pub layers: Vec<LayerSparsity>,
}

/// How much of a parameter is pruned.
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

/// How much of a model's masks is pruned, by layer and in all.
pub fn sparsity(model: &impl Module) -> Sparsity {
    let count = |layer: MaskedLayer| LayerSparsity {
        pruned: layer.kept.iter().filter(|kept| !**kept).count(),
        total: layer.kept.len(),
        path: layer.path,
    };
    Sparsity { layers: masked_layers(model, false).into_iter().map(count).collect() }
}
