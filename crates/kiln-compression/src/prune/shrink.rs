//! Channels that are not kept: masked, or removed.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param, Reparameterization};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Bool, Bytes, Int, Shape, Tensor, TensorData};

use super::channels::Channels;
use super::kept::{Cut, Kept, elements};
use super::layers::{MASK, Replace, leaf, masked_layers};
use super::mask::Masks;
use super::moments::{State, edit};
use super::shapes::Shapes;
use crate::Error;
use crate::parameters::{Place, Site, sites};
use crate::quantize::FakeQuant;

impl Masks {
    /// Masks for every parameter that has channels of a group: weights, biases, gammas and betas. For [`mask_channels`].
    pub fn of_channels(channels: &Channels) -> Self {
        Self::at(channels.groups.iter().flat_map(|group| group.members.iter().map(|member| member.path.clone())))
    }
}

/// Whether a parameter is a running statistic of a norm, which has no mask: gamma and beta are masked.
fn is_statistic(path: &str) -> bool {
    path.rsplit('.').next().is_some_and(|field| field.starts_with("running_"))
}

/// Masks all channels that are not kept, in a model that has [`Masks::of_channels`]: on the side that makes a channel and on the side that
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
/// use kiln_compression::{ChannelPruning, Channels, Masks, mask_channels, shrink};
///
/// let device = Device::flex();
/// let channels = Channels::of(build, forward)?;
/// let net = build(&device).apply_reparameterization(Masks::of_channels(&channels));
/// let kept = channels.choose(&net, &ChannelPruning::uniform(0.5))?;
/// let masked = mask_channels(net, &kept)?; // train it, then:
/// let small = shrink(masked.clone(), &kept)?.materialize();
/// let difference = (forward(&masked, &device) - forward(&small, &device)).abs().max();
/// assert!(difference.into_scalar::<f32>() < 1e-5);
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnknownParameter`] for a parameter of a group without a mask, [`Error::InvalidSetting`] for a choice that does not fit the model.
pub fn mask_channels<M: Module>(model: M, kept: &Kept) -> Result<M, Error> {
    kept.check(&Shapes::of(&model).0)?;
    let mut layers: BTreeMap<_, _> =
        masked_layers(&model, false).into_iter().map(|layer| (layer.path.clone(), layer)).collect();
    let mut masks = BTreeMap::new();
    for (path, cuts) in kept.cuts() {
        let Some(layer) = layers.remove(path) else {
            if is_statistic(path) {
                continue;
            }
            let known = layers.into_keys().collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownParameter { path: path.to_owned(), known });
        };
        let inside = elements(&layer.shape, &cuts);
        let kept = layer.kept.iter().zip(inside).map(|(own, inside)| *own && inside).collect();
        masks.insert(path.to_owned(), kept);
    }
    Ok(model.map(&mut Replace { place: Place::default(), kept: masks }))
}

/// Removes the channels that are not kept: the dense, smaller model. Masks are cut along, and parameters keep their ids, so that the
/// optimizer's state can be cut as well ([`shrink_moments`]).
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
    let cuts = kept.cuts();
    let is_tracked = model.devices().iter().any(|device| device.is_autodiff());
    // New running statistics: those of a clone stay.
    let own = if is_tracked { model.valid().train() } else { model.valid() };
    drop(model);
    Ok(own.map(&mut Shrink { place: Place::default(), cuts, shape: vec![] }))
}

/// Refuses a choice of channels of a parameter that has them in what is attached to it, besides its mask.
pub(super) fn check_parts(model: &impl Module, kept: &Kept) -> Result<(), Error> {
    let cuts = kept.cuts();
    let mut sites = sites(model).into_iter().filter(|site| cuts.contains_key(site.path.as_str()));
    // What has parameters of its own has the number of channels, and so have the blocks of codes. A mask is cut along.
    match sites.find(|site| site.has_inner || site.parts.contains(FakeQuant::NAME)) {
        Some(site) => Err(Error::Reparameterized { path: site.path }),
        None => Ok(()),
    }
}

struct Shrink<'a> {
    place: Place,
    cuts: BTreeMap<&'a str, Vec<Cut>>,
    /// Of the parameter that was cut last, before it was cut.
    shape: Vec<usize>,
}

impl ModuleMapper for Shrink<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(cuts) = self.cuts.get(self.place.parameter().as_str()).filter(|_| !self.place.is_inner()) else {
            return param;
        };
        self.shape = param.lazy_shape().to_vec();
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

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let is_mask = self.place.is_inner() && (self.place.field(), self.place.kind()) == MASK;
        match self.cuts.get(self.place.parameter().as_str()) {
            Some(cuts) if is_mask => param.map(|old| {
                let device = old.device();
                let inside = elements(&self.shape, cuts);
                let own = old.into_data();
                let own = own.iter::<bool>().zip(inside);
                let own: Vec<bool> = own.filter_map(|(own, inside)| inside.then_some(own)).collect();
                let shape = Shape::from(std::iter::once(own.len()).chain((1..D).map(|_| 1)).collect::<Vec<_>>());
                Tensor::from_data(TensorData::new(own, shape), &device)
            }),
            _ => param,
        }
    }
}

/// Cuts an optimizer's moments as [`shrink`] cuts the parameters. `model` is the model before or after it is cut: only its ids are read.
///
/// What [`mask_moments`](crate::mask_moments) says of records holds here too.
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
/// use kiln_compression::{ChannelPruning, Channels, shrink, shrink_moments};
///
/// let device = Device::flex().autodiff();
/// let channels = Channels::of(build, forward)?;
/// let (mut net, mut optimizer) = (build(&device), AdamWConfig::new().init());
/// for _ in 0..2 {
///     let gradients = GradientsParams::from_grads(forward(&net, &device).sum().backward(), &net);
///     net = optimizer.step(1e-3, net, gradients);
///     let kept = channels.choose(&net, &ChannelPruning::uniform(0.0))?; // all
///     optimizer = shrink_moments(optimizer, &net, &kept)?;
///     net = shrink(net, &kept)?;
/// }
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
/// [`Error::Optimizer`] for a state that cannot be recorded, and for one that does not have the shape that the parameter had (Adafactor's rows
/// and columns, blocks of 8 bits): build a new optimizer then.
pub fn shrink_moments(optimizer: ModuleOptimizer, model: &impl Module, kept: &Kept) -> Result<ModuleOptimizer, Error> {
    let cuts = kept.cuts();
    let paths: BTreeMap<u64, Site> = sites(model)
        .into_iter()
        .filter(|site| cuts.contains_key(site.path.as_str()))
        .map(|site| (site.id.val(), site))
        .collect();
    edit(optimizer, |id, state| {
        let Some((site, cuts)) = paths.get(&id).and_then(|site| Some((site, cuts.get(site.path.as_str())?))) else {
            return Ok(state);
        };
        let fits = |cut: &Cut| state.shape.get(cut.axis) == Some(&cut.size);
        if state.shape.num_dims() != site.shape.len() || !cuts.iter().all(fits) {
            let State { name, shape, .. } = state;
            return Err(Error::Optimizer(format!(
                "'{name}' of '{}' is {shape:?}, not the parameter's shape",
                site.path
            )));
        }
        let size = state.element_size()?;
        let inside = elements(&state.shape, cuts);
        let own = state.bytes.chunks_exact(size).zip(inside).filter(|(_, inside)| *inside);
        let bytes = Bytes::from_bytes_vec(own.flat_map(|(element, _)| element.iter().copied()).collect());
        let mut shape = state.shape.clone();
        cuts.iter().for_each(|cut| shape[cut.axis] = cut.entries.len());
        Ok(State { shape, bytes, ..state })
    })
}
