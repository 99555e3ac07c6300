//! Channels of a model: chosen, masked, removed.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Bool, Bytes, Int, Shape, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::amount::{best, under_target, uniform};
use super::channels::Channels;
use super::kept::{Cut, Kept, elements};
use super::layers::{Replace, leaf, masked_layers};
use super::mask::{Mask, Masks};
use super::moments::{State, edit};
use super::shapes::{Site, sites};
use crate::Error;
use crate::place::Place;

/// How many channels are removed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ChannelPruning {
    /// The same part of each group.
    Uniform {
        /// The part that is removed, from 0 to below 1.
        ratio: f64,
        /// Each group keeps a multiple of it, rounded up; 1 or more. Hardware likes multiples of 8.
        #[serde(default = "one")]
        round_to: usize,
    },
    /// From the groups where they matter least, until a forward pass costs `left` of its multiply-adds. Groups are compared by the share of
    /// a channel in the mean importance of its group.
    MultiplyAdds {
        /// The part of the multiply-adds that is left, above 0 to 1.
        left: f64,
        /// How many channels are removed at a time, and each group keeps a multiple of it; 1 or more.
        #[serde(default = "one")]
        round_to: usize,
    },
}

fn one() -> usize {
    1
}

impl ChannelPruning {
    /// The same part of each group, to single channels.
    pub fn uniform(ratio: f64) -> Self {
        Self::Uniform { ratio, round_to: 1 }
    }

    /// A part of the multiply-adds is left.
    pub fn multiply_adds(left: f64) -> Self {
        Self::MultiplyAdds { left, round_to: 1 }
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what, value: String, expected| Err(Error::InvalidSetting { what, value, expected });
        match *self {
            Self::Uniform { round_to: 0, .. } | Self::MultiplyAdds { round_to: 0, .. } => {
                wrong("round_to", "0".into(), "1 or more")
            }
            Self::Uniform { ratio, .. } if !(0.0..1.0).contains(&ratio) => {
                wrong("ratio", ratio.to_string(), "0 to below 1")
            }
            Self::MultiplyAdds { left, .. } if !(left > 0.0 && left <= 1.0) => {
                wrong("left", left.to_string(), "above 0 to 1")
            }
            _ => Ok(()),
        }
    }
}

impl Channels {
    /// How much each channel of each group matters: the L2 norm of all that belongs to it in weights of two or more dimensions and in gammas
    /// of norms, on the input side and on the output side (Torch-Pruning's group magnitude).
    ///
    /// # Errors
    /// Those of [`shrink`] for a model of other shapes.
    pub fn importance(&self, model: &impl Module) -> Result<Vec<Vec<f32>>, Error> {
        struct Squares<'a> {
            place: Place,
            channels: &'a Channels,
            sums: Vec<Vec<f32>>,
        }
        impl ModuleVisitor for Squares<'_> {
            fn enter_module(&mut self, name: &str, container: &str) {
                self.place.enter(name, container);
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.place.leave();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.place.is_inner() || (D < 2 && self.place.field() != "gamma") {
                    return;
                }
                let path = self.place.parameter();
                for (group, sums) in self.channels.groups.iter().zip(&mut self.sums) {
                    for member in group.members.iter().filter(|member| member.path == path) {
                        let shape = param.lazy_shape();
                        let value = param.base().detach();
                        let outer: usize = shape[..member.axis].iter().product();
                        let inner: usize = shape[member.axis + 1..].iter().product();
                        let squares =
                            value.square().reshape([outer, group.size, member.block * inner]).sum_dim(2).sum_dim(0);
                        let squares = squares.into_data().iter::<f32>().collect::<Vec<_>>();
                        sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
                    }
                }
            }
        }
        self.all().check(&shapes_of(model))?;
        let sums = self.groups.iter().map(|group| vec![0.0; group.size]).collect();
        let mut squares = Squares { place: Place::default(), channels: self, sums };
        model.visit(&mut squares);
        Ok(squares.sums.into_iter().map(|group| group.into_iter().map(f32::sqrt).collect()).collect())
    }

    /// Chooses the channels to keep by their [`importance`](Self::importance) in `model`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for numbers out of range and for multiply-adds that cannot be reached, and those of
    /// [`importance`](Self::importance).
    pub fn choose(&self, model: &impl Module, how: &ChannelPruning) -> Result<Kept, Error> {
        how.check()?;
        self.choose_by(&self.importance(model)?, how)
    }

    /// The same with an importance of one's own: for each group a number for each channel.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for numbers out of range, other numbers of groups or channels, and multiply-adds that cannot be reached.
    pub fn choose_by(&self, importance: &[Vec<f32>], how: &ChannelPruning) -> Result<Kept, Error> {
        how.check()?;
        let sizes: Vec<usize> = self.groups.iter().map(|group| group.size).collect();
        if !importance.iter().map(Vec::len).eq(sizes.iter().copied()) {
            let value = format!("{:?}", importance.iter().map(Vec::len).collect::<Vec<_>>());
            let expected = "a number for each channel of each group";
            return Err(Error::InvalidSetting { what: "the importance", value, expected });
        }
        let counts = match *how {
            ChannelPruning::Uniform { ratio, round_to } => {
                sizes.iter().map(|size| uniform(*size, ratio, round_to)).collect()
            }
            ChannelPruning::MultiplyAdds { left, round_to } => {
                let first = |counts: &[usize]| {
                    let groups = self.groups.iter().cloned().zip(counts.iter().map(|count| (0..*count).collect()));
                    self.multiply_adds(&Kept::new(groups))
                };
                let target = (first(&sizes) as f64 * left) as u64;
                under_target(importance, round_to, target, first).ok_or(Error::InvalidSetting {
                    what: "left",
                    value: left.to_string(),
                    expected: "multiply-adds that the prunable channels can be reduced to",
                })?
            }
        };
        let kept = importance.iter().zip(counts).map(|(group, count)| best(group, count));
        Ok(Kept::new(self.groups.iter().cloned().zip(kept)))
    }
}

impl Masks {
    /// Masks for every parameter that has channels of a group: weights, biases, gammas and betas. For [`mask_channels`].
    pub fn of_channels(channels: &Channels) -> Self {
        Self::at(channels.groups.iter().flat_map(|group| group.members.iter().map(|member| member.path.clone())))
    }
}

fn shapes_of(model: &impl Module) -> BTreeMap<String, Vec<usize>> {
    sites(model).into_iter().map(|site| (site.path, site.shape)).collect()
}

/// Whether a parameter is a running statistic of a norm, which has no mask: gamma and beta are masked.
fn is_statistic(path: &str) -> bool {
    path.rsplit('.').next().is_some_and(|field| field.starts_with("running_"))
}

/// Masks all channels that are not kept, in a model that has [`Masks::of_channels`]: on the side that makes a channel and on the side that
/// reads it. The model computes what [`shrink`] makes of it computes, and can be trained before that.
///
/// # Errors
/// [`Error::UnknownParameter`] for a parameter of a group without a mask, [`Error::InvalidSetting`] for a choice that does not fit the model.
pub fn mask_channels<M: Module>(model: M, kept: &Kept) -> Result<M, Error> {
    kept.check(&shapes_of(&model))?;
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
/// parameter that has other parameters besides its mask (an adapter): merge them first.
pub fn shrink<M: Module>(model: M, kept: &Kept) -> Result<M, Error> {
    kept.check(&shapes_of(&model))?;
    let cuts = kept.cuts();
    if let Some(site) = sites(&model).into_iter().find(|site| site.has_inner && cuts.contains_key(site.path.as_str())) {
        return Err(Error::Reparameterized { path: site.path });
    }
    let is_tracked = model.devices().iter().any(|device| device.is_autodiff());
    // New running statistics: those of a clone stay.
    let own = if is_tracked { model.valid().train() } else { model.valid() };
    drop(model);
    Ok(own.map(&mut Shrink { place: Place::default(), cuts, shape: vec![] }))
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
        let is_mask = self.place.is_inner() && (self.place.field(), self.place.kind()) == Mask::PLACE;
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
