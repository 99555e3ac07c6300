//! An optimizer's moments of weights and channels that are pruned.

use std::collections::HashMap;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Bytes, DType, Shape};
use burn_pack::{Reader, Tensor, Writer};

use super::kept::{Cut, Kept, elements};
use super::mask::masked_layers;
use crate::Error;
use crate::parameters::{Site, sites};

/// Sets an optimizer's moments to zero where `model` is pruned: momentum of SGD, both moments of Adam, whatever an optimizer of burn keeps
/// for each element. Everything else keeps its bits.
///
/// A pruned weight has a gradient of zero, but its momentum still moves it: call this after each change of the masks. State of another shape
/// than the parameter's stays as it is (Adafactor's rows and columns).
///
/// The state goes through burn's record, so that it works with any optimizer. It is then on burn's default device until the next step, and
/// floats of a state that burn derives are in the default dtype of that device.
///
/// The example of [`prune`](crate::prune) calls it in a training loop.
///
/// # Errors
/// [`Error::Optimizer`] for a state that cannot be recorded.
pub fn mask_moments(optimizer: ModuleOptimizer, model: &impl Module) -> Result<ModuleOptimizer, Error> {
    let layers = masked_layers(model).into_iter().filter(|layer| layer.kept.contains(&false));
    let masks: HashMap<u64, _> = layers.map(|layer| (layer.site.id.val(), (layer.site.shape, layer.kept))).collect();
    if masks.is_empty() {
        return Ok(optimizer);
    }
    edit(optimizer, |id, state| {
        let Some((shape, kept)) = masks.get(&id).filter(|(shape, _)| shape[..] == state.shape[..]) else {
            return Ok(state);
        };
        debug_assert_eq!(shape.iter().product::<usize>(), kept.len());
        let size = state.element_size()?;
        let mut bytes = state.bytes.to_vec();
        for (element, _) in bytes.chunks_exact_mut(size).zip(kept).filter(|(_, kept)| !**kept) {
            element.fill(0);
        }
        Ok(State { bytes: Bytes::from_bytes_vec(bytes), ..state })
    })
}

/// Cuts an optimizer's moments as [`shrink`](crate::shrink) cuts the parameters. `model` is the model before or after it is cut: only its ids are read.
///
/// The notes of [`mask_moments`] on records apply.
///
/// The example of [`mask_channels`](crate::mask_channels) trains on with the moments that stay.
///
/// # Errors
/// [`Error::Optimizer`] for a state that cannot be recorded, and for one that does not have the shape that the parameter had (Adafactor's rows
/// and columns, blocks of 8 bits): build a new optimizer then.
pub fn shrink_moments(optimizer: ModuleOptimizer, model: &impl Module, kept: &Kept) -> Result<ModuleOptimizer, Error> {
    let cuts = kept.cuts();
    let sites: HashMap<u64, Site> = sites(model).into_iter().map(|site| (site.id.val(), site)).collect();
    edit(optimizer, |id, state| {
        let cut = sites.get(&id).and_then(|site| Some((site, cuts.get(site.path.as_str())?)));
        let Some((site, cuts)) = cut else { return Ok(state) };
        let fits = |cut: &Cut| state.shape.get(cut.axis) == Some(&cut.size);
        if state.shape.num_dims() != site.shape.len() || !cuts.iter().all(fits) {
            let (State { name, shape, .. }, path) = (state, &site.path);
            return Err(Error::Optimizer(format!("'{name}' of '{path}' is {shape:?}, not the parameter's shape")));
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

/// A tensor of an optimizer's state.
struct State {
    name: String,
    dtype: DType,
    shape: Shape,
    bytes: Bytes,
}

impl State {
    /// Bytes of an element.
    fn element_size(&self) -> Result<usize, Error> {
        let count = self.shape.num_elements();
        match self.bytes.len() {
            bytes if count > 0 && bytes.is_multiple_of(count) => Ok(bytes / count),
            bytes => Err(Error::Optimizer(format!("'{}' has {bytes} bytes for {count} elements", self.name))),
        }
    }
}

/// Changes the tensors of an optimizer's state. `change` is given the id of the parameter.
fn edit(
    optimizer: ModuleOptimizer,
    mut change: impl FnMut(u64, State) -> Result<State, Error>,
) -> Result<ModuleOptimizer, Error> {
    let bytes = optimizer.into_bytes().map_err(failed)?;
    let reader = Reader::from_bytes(bytes).map_err(failed)?;
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let mut tensors = vec![];
    for tensor in reader.into_tensors().map_err(failed)? {
        let (name, dtype, shape, id, bytes) = tensor.into_parts().map_err(failed)?;
        let mut state = State { name, dtype, shape, bytes };
        if let Some(id) = id {
            state = change(id, state)?;
        }
        tensors.push(Tensor::new(state.name, state.dtype, state.shape, id, state.bytes));
    }
    let mut writer = Writer::new(tensors);
    for (key, value) in &scalars {
        writer = writer.with_scalar(key, *value);
    }
    for (key, value) in &metadata {
        writer = writer.with_metadata(key, value);
    }
    let bytes = writer.into_bytes().map_err(failed)?;
    optimizer.from_bytes(bytes).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Optimizer(error.to_string())
}
