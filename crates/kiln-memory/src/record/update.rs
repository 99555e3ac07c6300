//! The update of a step that is recorded.

use std::any::Any;
use std::collections::HashMap;

use burn::backend::capture::TensorId;
use burn::module::{ModuleMapper, Param, ParamId};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{Device, Tensor};

use super::walk::{id_of, joined, untracked};
use super::{Role, StepOptions, mark};

/// burn's `ModuleOptimizer::step`, which cannot be recorded itself.
pub(super) struct Update<'a, O> {
    pub(super) optimizer: &'a O,
    pub(super) options: StepOptions,
    pub(super) gradients: GradientsParams,
    pub(super) states: HashMap<ParamId, Box<dyn Any>>,
    /// What is old of the run of parameters that is being updated.
    pub(super) held: Vec<Box<dyn Any>>,
    pub(super) held_bytes: u64,
    /// Where old values were given up.
    pub(super) releases: Vec<TensorId>,
    pub(super) device: Device,
    pub(super) chunk_bytes: Option<u64>,
    pub(super) found: Vec<(TensorId, Role)>,
    pub(super) path: Vec<String>,
}

impl<O> Update<'_, O> {
    pub(super) fn release(&mut self) {
        if !self.held.is_empty() {
            mark(&self.device, &mut self.releases);
        }
        self.held.clear();
        self.held_bytes = 0;
    }
}

impl<O: Optimizer> ModuleMapper for Update<'_, O> {
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
        let state = self.states.remove(&id).and_then(|state| state.downcast::<O::State<D>>().ok()).map(|state| *state);
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
        let (tensor, state) = self.optimizer.step(1e-3, tensor, gradient, state);
        if let Some(state) = state {
            self.states.insert(id, Box::new(state));
        }
        self.found.extend(id_of(tensor.clone()).map(|id| (id, Role::Updated(joined(&self.path)))));
        Param::from_mapped_value(id, tensor, mapper)
    }
}
