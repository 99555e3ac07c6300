//! A mask on a parameter: where masks are attached, and how those of a model are read and replaced.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, Param, ParamId, Reparameterization, Reparameterizer};
use burn::tensor::{Bool, Tensor, TensorData};
use kiln_operations::NESTED;

use super::channels::Channels;
use crate::Error;
use crate::parameters::{Edit, Item, Place, Site, edited, is_below, leaf, sites, walk};

/// The field of [`Mask`] that holds the mask, and the type around it, as visitors see them.
const MASK: (&str, &str) = ("kept", "Mask");

/// A parameter of which some elements are pruned: its value has exact zeros there, and so has its gradient.
///
/// The stored value keeps what it had. [`Masks`] attaches masks to a model, [`prune`](super::prune) changes them.
#[derive(Module, Debug)]
pub struct Mask {
    /// `[n]` for a parameter of `n` elements, in row-major order; true where the element is kept.
    pub kept: Param<Tensor<1, Bool>>,
}

impl Reparameterization for Mask {
    const NAME: &'static str = "mask";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let pruned = self.kept.val().bool_not().reshape(base.shape());
        base.mask_fill(pruned, 0.0)
    }
}

/// Attaches a [`Mask`] that keeps everything to each weight that can be pruned.
///
/// A record of a model with masks contains them. It loads into a model to which masks are attached.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_compression::{Masks, Pruning, prune, sparsity};
///
/// let model = LinearConfig::new(8, 8).init(&Device::flex());
/// let masks = Masks::of(&model);
/// let model = model.apply_reparameterization(masks);
/// let model = prune(model, &Pruning::magnitude(0.75))?;
/// assert_eq!(sparsity(&model).total(), 0.75);
/// let plain = model.materialize(); // without masks, with zeros
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masks {
    paths: BTreeSet<String>,
}

impl Masks {
    /// Masks for the weights of all linear layers and convolutions of a model: parameters of two or more dimensions, no biases, no norms,
    /// no embeddings. Parameters that are shared are named once, where they are found first.
    pub fn of(model: &impl Module) -> Self {
        let weights = sites(model).into_iter().filter(|site| input_axis(site).is_some());
        Self { paths: weights.map(|site| site.path).collect() }
    }

    /// Masks for every parameter that has channels of a group: weights, biases, gammas and betas. For
    /// [`mask_channels`](crate::mask_channels).
    pub fn of_channels(channels: &Channels) -> Self {
        let members = channels.groups.iter().flat_map(|group| &group.members);
        Self { paths: members.map(|member| member.path.clone()).collect() }
    }

    /// Only the weights below `path`: `layer1`, or `layer1.0.conv1.weight`.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] for a path that names none of them.
    pub fn only(self, path: &str) -> Result<Self, Error> {
        self.split(path).map(|(inside, _)| inside)
    }

    /// All but the weights below `path`, as the last layer, which is often left dense.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] for a path that names none of them.
    pub fn skip(self, path: &str) -> Result<Self, Error> {
        self.split(path).map(|(_, outside)| outside)
    }

    /// The paths of the parameters that get masks.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    fn split(self, path: &str) -> Result<(Self, Self), Error> {
        let (inside, outside): (BTreeSet<_>, BTreeSet<_>) = self.paths.into_iter().partition(|own| is_below(own, path));
        if inside.is_empty() {
            return Err(Error::unknown(path, outside));
        }
        Ok((Self { paths: inside }, Self { paths: outside }))
    }
}

impl Reparameterizer for Masks {
    type Reparam = Mask;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Mask>) {
        if !self.paths.contains(path) {
            return (param, None);
        }
        let count = param.lazy_shape().num_elements();
        let kept = Tensor::<1>::zeros([count], &param.lazy_device()).equal_elem(0.0);
        (param, Some(Mask { kept: Param::initialized(ParamId::new(), kept) }))
    }
}

/// A parameter that has a mask.
#[derive(Debug, Clone)]
pub(super) struct MaskedLayer {
    pub(super) site: Site,
    /// Row-major.
    pub(super) kept: Vec<bool>,
}

impl MaskedLayer {
    /// Whether the mask changes the stored value, and not the result of another reparameterization.
    pub(super) fn is_first(&self) -> bool {
        self.site.parts.iter().find(|part| *part != NESTED).is_some_and(|part| part == Mask::NAME)
    }
}

/// The dimension of the layer's input, if the parameter is the weight of a linear layer or a convolution: burn's linear weight is
/// `[in, out]`, a convolution's `[out, in / groups, ..]`, a transposed convolution's `[in, out / groups, ..]`.
pub(super) fn input_axis(site: &Site) -> Option<usize> {
    let field = site.path.rsplit('.').next();
    match site.kind.as_str() {
        _ if site.shape.len() < 2 || field != Some("weight") => None,
        "Linear" | "ConvTranspose1d" | "ConvTranspose2d" | "ConvTranspose3d" => Some(0),
        "Conv1d" | "Conv2d" | "Conv3d" | "DeformConv2d" => Some(1),
        _ => None,
    }
}

/// The parameters that have masks, in the order of the model's fields.
///
/// # Panics
/// When a device cannot give a mask.
pub(super) fn masked_layers(model: &impl Module) -> Vec<MaskedLayer> {
    let mut masks = BTreeMap::new();
    walk(model, |place, item| {
        if let Item::Bool(_, read) = item
            && place.is_in(MASK)
        {
            let path = place.parameter();
            let data = read().unwrap_or_else(|reason| panic!("the mask of '{path}' cannot be read: {reason}"));
            masks.insert(path, data.iter::<bool>().collect::<Vec<bool>>());
        }
    });
    let masked = |site: Site| masks.remove(&site.path).map(|kept| MaskedLayer { site, kept });
    sites(model).into_iter().filter_map(masked).collect()
}

/// The masks of a model by the path of the parameter: row-major, true where a weight is kept.
pub fn masks_of(model: &impl Module) -> BTreeMap<String, Vec<bool>> {
    masked_layers(model).into_iter().map(|layer| (layer.site.path, layer.kept)).collect()
}

/// Replaces the masks at these paths, as [`masks_of`] gives them. Masks at other paths stay as they are.
///
/// # Errors
/// [`Error::UnknownParameter`] for a path without a mask, [`Error::InvalidSetting`] for a mask of another length.
pub fn set_masks<M: Module>(model: M, masks: BTreeMap<String, Vec<bool>>) -> Result<M, Error> {
    let known = masks_of(&model);
    for (path, mask) in &masks {
        let own = known.get(path).ok_or_else(|| Error::unknown(path, known.keys()))?;
        if own.len() != mask.len() {
            let value = format!("{} for '{path}' of {} elements", mask.len(), own.len());
            return Err(Error::invalid("the length of a mask", value, "one for each element"));
        }
    }
    Ok(with_masks(model, masks))
}

/// Replaces the masks at these paths. Lengths must be those of the parameters, or of the cut parameters.
pub(super) fn with_masks<M: Module>(model: M, masks: BTreeMap<String, Vec<bool>>) -> M {
    struct Replace(BTreeMap<String, Vec<bool>>);
    impl Edit for Replace {
        fn bool<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
            match self.0.get(&place.parameter()).filter(|_| place.is_in(MASK)) {
                Some(kept) => param.map(|old| {
                    let row = TensorData::new(kept.clone(), [kept.len()]);
                    Tensor::<1, Bool>::from_data(row, &old.device()).unsqueeze()
                }),
                None => param,
            }
        }
    }
    edited(model, &mut Replace(masks))
}

/// Sets the stored values to zero where a model is pruned. What the model computes does not change: where a mask comes after another part of
/// a [`Nest`](crate::Nest), which may compute other elements from the pruned ones, the stored values stay.
pub fn zero_pruned<M: Module>(model: M) -> M {
    struct Zero(BTreeMap<String, Vec<bool>>);
    impl Edit for Zero {
        fn float<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.0.get(&place.parameter()).filter(|_| !place.is_inner()) {
                Some(kept) => param.map(|tensor| {
                    leaf(tensor, |tensor| {
                        let kept = TensorData::new(kept.clone(), tensor.shape());
                        let pruned = Tensor::<D, Bool>::from_data(kept, &tensor.device()).bool_not();
                        tensor.mask_fill(pruned, 0.0)
                    })
                }),
                None => param,
            }
        }
    }
    let layers = masked_layers(&model).into_iter().filter(MaskedLayer::is_first);
    let masks = layers.map(|layer| (layer.site.path, layer.kept)).collect();
    edited(model, &mut Zero(masks))
}
