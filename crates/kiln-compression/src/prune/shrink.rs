//! Channels that are not kept: masked, or removed; and the shapes of a shrunk model, for a model that is built anew.

use std::collections::BTreeMap;

use burn::module::{Module, Param, Reparameterization};
use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

use super::kept::{Cut, Kept, elements};
use super::mask::{masked_layers, with_masks};
use crate::Error;
use crate::parameters::{Edit, Place, edited, leaf, sites, sites_by_path};
use crate::quantize::FakeQuant;

/// Whether a parameter is a running statistic of a norm, which has no mask: gamma and beta are masked.
fn is_statistic(path: &str) -> bool {
    path.rsplit('.').next().is_some_and(|field| field.starts_with("running_"))
}

/// Masks all channels that are not kept, in a model that has [`Masks::of_channels`](crate::Masks::of_channels): on the side that makes a channel and on the side that
/// reads it. The model computes what [`shrink`] makes of it computes, and can be trained before that.
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::conv::{Conv2d, Conv2dConfig};
/// # use burn::tensor::{Device, Tensor};
/// # #[derive(Module, Debug)]
/// # struct Net {
/// #     first: Conv2d,
/// #     second: Conv2d,
/// # }
/// # fn build(device: &Device) -> Net {
/// #     Net {
/// #         first: Conv2dConfig::new([3, 8], [3, 3]).init(device),
/// #         second: Conv2dConfig::new([8, 5], [3, 3]).init(device),
/// #     }
/// # }
/// # fn forward(net: &Net, device: &Device) -> Tensor<4> {
/// #     net.second.forward(net.first.forward(Tensor::ones([1, 3, 16, 16], device)))
/// # }
/// use burn::optim::{AdamWConfig, GradientsParams};
/// use kiln_compression::{ChannelPruning, Channels, Masks, mask_channels, shrink, shrink_moments};
///
/// let device = Device::flex().autodiff();
/// let channels = Channels::of(build, forward)?;
/// let net = build(&device).apply_reparameterization(Masks::of_channels(&channels));
/// let kept = channels.choose(&net, &ChannelPruning::uniform(0.5))?;
/// let (mut net, mut optimizer) = (mask_channels(net, &kept)?, AdamWConfig::new().init());
/// let gradients = GradientsParams::from_grads(forward(&net, &device).sum().backward(), &net);
/// net = optimizer.step(1e-3, net, gradients); // .. more steps, then:
///
/// let small = shrink(net.clone(), &kept)?.materialize();
/// let difference = (forward(&net, &device) - forward(&small, &device)).abs().max();
/// assert!(difference.into_scalar::<f32>() < 1e-4);
/// // To train the small model, shrink the moments as well.
/// optimizer = shrink_moments(optimizer, &net, &kept)?;
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnknownParameter`] for a parameter of a group without a mask, [`Error::InvalidSetting`] for a choice that does not fit the model.
pub fn mask_channels<M: Module>(model: M, kept: &Kept) -> Result<M, Error> {
    kept.check(&Shapes::of(&model).0)?;
    let layers: BTreeMap<_, _> = masked_layers(&model).into_iter().map(|own| (own.site.path.clone(), own)).collect();
    let mut masks = BTreeMap::new();
    for (path, cuts) in kept.cuts() {
        match layers.get(path) {
            Some(layer) => {
                let inside = elements(&layer.site.shape, &cuts);
                let kept = layer.kept.iter().zip(inside).map(|(own, inside)| *own && inside).collect();
                masks.insert(path.to_owned(), kept);
            }
            None if is_statistic(path) => {}
            None => return Err(Error::unknown(path, layers.keys())),
        }
    }
    Ok(with_masks(model, masks))
}

/// Removes the channels that are not kept: the dense, smaller model. Masks are cut along, and parameters keep their ids, so that the
/// optimizer's state can be cut as well ([`shrink_moments`](crate::shrink_moments)).
///
/// The model is cut off from its clones: running statistics of batch norm are no longer shared with them.
///
/// It computes what the model with [`mask_channels`] computes, up to rounding: sums over fewer channels are added in another order.
///
/// The number of groups of a depthwise convolution is no parameter. A model with such convolutions must take it from the weight's shape, as
/// kiln-models does, or it must be set in the model's field.
///
/// # Errors
/// [`Error::UnknownParameter`] and [`Error::InvalidSetting`] for a choice that does not fit the model, [`Error::Reparameterized`] for a
/// parameter under an adapter, codes or the simulation of codes: merge them first ([`Module::materialize`]).
pub fn shrink<M: Module>(model: M, kept: &Kept) -> Result<M, Error> {
    kept.check(&Shapes::of(&model).0)?;
    check_parts(&model, kept)?;
    let mut shrink = Shrink(kept.cuts());
    let mut masks = BTreeMap::new();
    for layer in masked_layers(&model) {
        if let Some(cuts) = shrink.0.get(layer.site.path.as_str()) {
            let own = layer.kept.into_iter().zip(elements(&layer.site.shape, cuts));
            masks.insert(layer.site.path, own.filter_map(|(own, inside)| inside.then_some(own)).collect());
        }
    }
    let is_tracked = model.devices().iter().any(|device| device.is_autodiff());
    // New running statistics: those of a clone stay.
    let own = if is_tracked { model.valid().train() } else { model.valid() };
    drop(model);
    Ok(with_masks(edited(own, &mut shrink), masks))
}

/// Refuses a choice of channels of a parameter that has them in what is attached to it, besides its mask.
pub(super) fn check_parts(model: &impl Module, kept: &Kept) -> Result<(), Error> {
    let cuts = kept.cuts();
    let mut sites = sites(model).into_iter().filter(|site| cuts.contains_key(site.path.as_str()));
    // What has parameters of its own has the number of channels, and so have the blocks of codes. A mask is cut along.
    match sites.find(|site| site.has_inner || site.parts.iter().any(|part| part == FakeQuant::NAME)) {
        Some(site) => Err(Error::Reparameterized { path: site.path }),
        None => Ok(()),
    }
}

/// Cuts parameters by path.
struct Shrink<'a>(BTreeMap<&'a str, Vec<Cut>>);

impl Edit for Shrink<'_> {
    fn float<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let cuts = self.0.get(place.parameter().as_str()).filter(|_| !place.is_inner());
        let Some(cuts) = cuts else { return param };
        param.map(|tensor| {
            leaf(tensor, |tensor| {
                cuts.iter().fold(tensor, |tensor, cut| {
                    let entries: Vec<i64> = cut.entries.iter().map(|entry| *entry as i64).collect();
                    let entries = Tensor::<1, Int>::from_data(entries.as_slice(), &tensor.device());
                    tensor.select(cut.axis, entries)
                })
            })
        })
    }
}

/// The shapes of a model's parameters and running statistics by path. Saved beside a record of a shrunk model, they make a model that is
/// built anew fit it ([`reshape_like`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shapes(pub BTreeMap<String, Vec<usize>>);

impl Shapes {
    /// The shapes of a model.
    pub fn of(model: &impl Module) -> Self {
        Self(sites(model).into_iter().map(|site| (site.path, site.shape)).collect())
    }
}

/// The first values of each axis, as a tensor of its own: a slice could keep the memory of the whole.
fn first<const D: usize>(tensor: Tensor<D>, shape: &[usize]) -> Tensor<D> {
    let device = tensor.device();
    // On the device for recordings the whole would be counted beside its part, and values do not matter.
    if kiln_operations::is_capture(&device) {
        let mut sizes = [0; D];
        sizes.copy_from_slice(shape);
        return Tensor::zeros(sizes, (&device, tensor.dtype())).set_require_grad(tensor.is_require_grad());
    }
    leaf(tensor, |tensor| {
        shape.iter().enumerate().fold(tensor, |tensor, (axis, size)| match tensor.dims()[axis] == *size {
            true => tensor,
            false => tensor.select(axis, Tensor::<1, Int>::arange(0..*size as i64, &device.clone().inner())),
        })
    })
}

/// Cuts the parameters of a model that was built anew to these shapes, so that a record of the model with these shapes loads into it. Of
/// each axis the first values stay. Attach masks after this.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_compression::{Shapes, reshape_like};
///
/// let device = Device::flex();
/// let shapes = Shapes::of(&LinearConfig::new(3, 2).init(&device));
/// let linear = reshape_like(LinearConfig::new(8, 8).init(&device), &shapes)?;
/// assert_eq!(linear.weight.dims(), [3, 2]);
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnknownParameter`] for a path that the model does not have, [`Error::InvalidSetting`] for a shape that is larger than that of
/// the model or has another number of dimensions, [`Error::Reparameterized`] for a parameter to be cut that something is attached to.
pub fn reshape_like<M: Module>(model: M, shapes: &Shapes) -> Result<M, Error> {
    struct Reshape<'a>(&'a Shapes);
    impl Edit for Reshape<'_> {
        fn float<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.0.0.get(&place.parameter()) {
                Some(shape) if !place.is_inner() && param.lazy_shape()[..] != shape[..] => {
                    param.map(|tensor| first(tensor, shape))
                }
                _ => param,
            }
        }
    }
    let known = sites_by_path(&model);
    for (path, shape) in &shapes.0 {
        let site = known.get(path).ok_or_else(|| Error::unknown(path, known.keys()))?;
        let own = &site.shape;
        if own.len() != shape.len() || own.iter().zip(shape).any(|(own, size)| size > own || *size == 0) {
            let value = format!("{shape:?} for '{path}' of {own:?}");
            return Err(Error::invalid("a shape", value, "as many dimensions, none larger, none empty"));
        }
        if own != shape {
            site.expect_plain()?;
        }
    }
    Ok(edited(model, &mut Reshape(shapes)))
}
