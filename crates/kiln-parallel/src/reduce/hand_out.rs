//! Parameters that their owners hand to the other replicas after an update.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Tensor};

use super::communicator::Communicator;
use super::ownership::{Ownership, learned};
use super::parameters::for_each;
use super::pieces::{buckets, cut, joined, nothing};
use crate::error::Error;

/// Returns `model` with the values that each parameter has on its owner. Each replica hands out the parameters that it owns, in buckets of
/// at most `bucket_bytes` of f32, and takes the others. `ownership` is that [of](Ownership::of) the model.
///
/// `ready` is called before each operation, as by [`sum_gradients`](super::gradients::sum_gradients): it makes a bucket of this replica's
/// parameters, which may have no elements, and agrees with the other replicas that all have theirs.
///
/// Only stored values change. Ids, shapes, dtypes, devices, `require_grad` and reparameterizations stay. A group of one replica returns the
/// model as it is and does not call `ready`.
///
/// # Errors
/// Those of `ready` and of [`all_gather`](Communicator::all_gather). [`Error::InvalidSetting`] when `ownership` is that of another model or
/// group, or a parameter has a dtype that f32 cannot hold. The model is lost with an error: keep a clone, which copies no tensor.
pub fn hand_out<M: Module, E: From<Error>>(
    communicator: &dyn Communicator,
    mut model: M,
    ownership: &Ownership,
    bucket_bytes: u64,
    mut ready: impl FnMut(&dyn Fn() -> Tensor<1>) -> Result<Tensor<1>, E>,
) -> Result<M, E> {
    let (rank, replicas) = (communicator.rank(), communicator.replicas());
    let learned = learned(&model);
    if ownership.replicas() != replicas || ownership.parameters() != learned.len() {
        let value = format!("{} parameters, {} replicas", ownership.parameters(), ownership.replicas());
        let expected = "the ownership of this model's parameters that require gradients, among this group";
        return Err(Error::invalid("ownership", value, expected).into());
    }
    fits_f32(&model)?;
    if replicas == 1 {
        return Ok(model);
    }
    // Positions of parameters, for each replica and bucket.
    let handed_out: Vec<Vec<Vec<usize>>> = (0..replicas)
        .map(|rank| {
            let share: Vec<usize> = ownership.share(rank).collect();
            let elements: Vec<usize> = share.iter().map(|parameter| learned[*parameter].1).collect();
            let in_model = |bucket: Vec<usize>| bucket.iter().map(|position| share[*position]).collect();
            buckets(&elements, bucket_bytes).into_iter().map(in_model).collect()
        })
        .collect();
    let rounds = handed_out.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..rounds {
        let parameters = |rank: usize| handed_out[rank].get(round).map_or(&[][..], Vec::as_slice);
        let lengths_of =
            |rank: usize| parameters(rank).iter().map(|parameter| learned[*parameter].1).collect::<Vec<_>>();
        let own: Vec<ParamId> = parameters(rank).iter().map(|parameter| learned[*parameter].0).collect();
        let values = ready(&|| flat(&model, &own))?;
        let lengths: Vec<usize> = (0..replicas).map(|rank| lengths_of(rank).iter().sum()).collect();
        let gathered = communicator.all_gather(values, &lengths)?;
        let mut values = HashMap::new();
        for (other, gathered) in gathered.iter().enumerate().filter(|(other, _)| *other != rank) {
            let ids = parameters(other).iter().map(|parameter| learned[*parameter].0);
            values.extend(ids.zip(cut(gathered, &lengths_of(other))));
        }
        model = model.map(&mut Write(values));
    }
    Ok(model)
}

/// The values of parameters, in one tensor of f32.
fn flat(model: &impl Module, ids: &[ParamId]) -> Tensor<1> {
    let mut parts = vec![];
    for_each(model, |_, param| {
        if ids.contains(&param.id()) {
            parts.push(param.values());
        }
    });
    match parts.first().map(Tensor::device).or_else(|| model.devices().first().cloned()) {
        Some(device) => joined(parts, &device.inner()),
        None => nothing(&Default::default()),
    }
}

/// Replaces the stored values of parameters.
struct Write(HashMap<ParamId, Tensor<1>>);

impl ModuleMapper for Write {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.0.get(&param.id).cloned() else { return param };
        param.map(|old| {
            let new = values.to_device(&old.device().inner()).cast(old.dtype()).reshape(old.shape());
            match old.gradient_checkpointing_strategy() {
                // A new leaf: the copy must not be part of a graph.
                Some(strategy) => {
                    let learned = old.is_require_grad();
                    new.autodiff().with_gradient_checkpointing_strategy(strategy).set_require_grad(learned)
                }
                None => new,
            }
        })
    }
}

/// Refuses parameters whose values f32 cannot hold.
fn fits_f32(model: &impl Module) -> Result<(), Error> {
    let mut found = None;
    for_each(model, |_, param| {
        let dtype = param.dtype();
        if param.requires_grad() && !matches!(dtype, DType::F32 | DType::Flex32 | DType::F16 | DType::BF16) {
            found = Some(dtype);
        }
    });
    found.map_or(Ok(()), |dtype| {
        let field = "dtype of a parameter that replicas share";
        Err(Error::invalid(field, format!("{dtype:?}"), "F32, F16 or BF16"))
    })
}
