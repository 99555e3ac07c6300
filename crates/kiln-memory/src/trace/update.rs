//! The update of parameters in a recorded step.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use burn::backend::capture::TensorId;
use burn::module::{ModuleMapper, Param, ParamGroup, ParamId};
use burn::optim::{DynOptimizer, DynState, GradientsParams};
use burn::tensor::{Device, Tensor};

use super::options::StepOptions;
use super::recorder::Role;
use super::recorder::mark;
use super::walk::{id_of, joined, untracked};

/// The work of burn's `ModuleOptimizer::step`, which cannot be recorded itself.
pub(super) struct Update {
    pub(super) groups: Vec<(ParamGroup, Arc<dyn DynOptimizer>)>,
    pub(super) options: StepOptions,
    pub(super) gradients: GradientsParams,
    pub(super) states: HashMap<ParamId, DynState>,
    /// Old parameters, gradients and optimizer state of the chunk that is being updated.
    pub(super) held: Vec<Box<dyn Any>>,
    pub(super) held_bytes: u64,
    /// Marks of the positions where a chunk was dropped.
    pub(super) releases: Vec<TensorId>,
    pub(super) device: Device,
    pub(super) chunk_bytes: Option<u64>,
    pub(super) found: Vec<(TensorId, Role)>,
    pub(super) path: Vec<String>,
}

impl Update {
    pub(super) fn release(&mut self) {
        if !self.held.is_empty() {
            mark(&self.device, &mut self.releases);
        }
        self.held.clear();
        self.held_bytes = 0;
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
        let Some(gradient) = self.gradients.remove::<D>(id) else {
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
        if let Some(most) = self.chunk_bytes {
            let bytes = (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
            if self.held_bytes + bytes > most {
                self.release();
            }
            self.held.push(Box::new((tensor.clone(), gradient.clone(), state.clone())));
            self.held_bytes += bytes;
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
