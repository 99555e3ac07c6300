//! The update of parameters in a recorded step.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use burn::backend::capture::TensorId;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{DynOptimizer, DynState, GradientsParams};
use burn::tensor::{Device, Tensor};

use super::options::{StepOptions, UpdateChunks};
use super::recorder::Role;
use super::recorder::mark;
use super::walk::{id_of, joined, untracked};

/// The work of burn's `ModuleOptimizer::step`, which cannot be recorded itself.
pub(super) struct Update {
    pub(super) groups: Vec<(ParamGroup, Arc<dyn DynOptimizer>)>,
    pub(super) options: StepOptions,
    pub(super) gradients: GradientsParams,
    pub(super) states: HashMap<ParamId, DynState>,
    /// The parameters that are updated now. `None`: all.
    pub(super) chunk: Option<Vec<ParamId>>,
    /// Their old values, gradients and optimizer state.
    pub(super) held: Vec<Box<dyn Any>>,
    /// Marks of the positions where a chunk was dropped.
    pub(super) releases: Vec<TensorId>,
    pub(super) device: Device,
    pub(super) found: Vec<(TensorId, Role)>,
    pub(super) path: Vec<String>,
}

impl Update {
    /// The model after the update, chunk by chunk if the options have chunks.
    pub(super) fn of<M: Module>(&mut self, model: M) -> M {
        let Some(chunks) = self.options.update_chunks else { return model.map(self) };
        let mut sizes = Sizes { gradients: &self.gradients, all: 0, met: vec![] };
        model.visit(&mut sizes);
        let Sizes { all, met, .. } = sizes;
        let (ids, sizes): (Vec<ParamId>, Vec<u64>) = met.into_iter().unzip();
        UpdateChunks::of(&sizes, chunks.bytes(all)).into_iter().fold(model, |model, chunk| {
            self.chunk = Some(ids[chunk].to_vec());
            let model = model.map(self);
            mark(&self.device, &mut self.releases);
            self.held.clear();
            model
        })
    }
}

/// The parameters that learn.
struct Sizes<'a> {
    gradients: &'a GradientsParams,
    /// Bytes of all.
    all: u64,
    /// Those with a gradient, and their bytes.
    met: Vec<(ParamId, u64)>,
}

impl ModuleVisitor for Sizes<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() || self.met.iter().any(|(id, _)| *id == param.id) {
            return;
        }
        let value = param.base(); // without attachments, which are not updated with it
        let bytes = (value.shape().num_elements() * value.dtype().size()) as u64;
        self.all += bytes;
        if self.gradients.get::<D>(param.id).is_some() {
            self.met.push((param.id, bytes));
        }
    }
}

impl ModuleMapper for Update {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let is_now = self.chunk.as_ref().is_none_or(|chunk| chunk.contains(&id));
        let Some(gradient) = is_now.then(|| self.gradients.remove::<D>(id)).flatten() else {
            return Param::from_mapped_value(id, tensor, mapper);
        };
        let path = joined(&self.path);
        let mut of_parameter = self.groups.iter().filter(|(group, _)| group.matches(&id, Some(&path)));
        let Some((_, optimizer)) = of_parameter.next_back() else {
            return Param::from_mapped_value(id, tensor, mapper);
        };
        let optimizer = optimizer.clone();
        let state = self.states.remove(&id);
        let (tensor, mut gradient) = (untracked(tensor), gradient);
        if self.chunk.is_some() {
            self.held.push(Box::new((tensor.clone(), gradient.clone(), state.clone())));
            if self.options.scale_gradients {
                gradient = gradient * 0.5;
            }
        }
        let (tensor, state) = optimizer.step_dyn(D, 1e-3, tensor.into_bridge(), gradient.into_bridge(), state);
        let tensor = Tensor::<D>::from_bridge(tensor);
        if let Some(state) = state {
            self.states.insert(id, state);
        }
        self.found.extend(id_of(tensor.clone()).map(|id| (id, Role::Updated(path.clone()))));
        Param::from_mapped_value(id, tensor, mapper)
    }
}
