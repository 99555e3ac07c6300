//! Visitors and mappers of the model's parameters for a recording.

use std::collections::{BTreeSet, HashSet};

use burn::backend::capture::TensorId;
use burn::backend::{Autodiff, AutodiffBackend, Capture};
use burn::module::{ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, DType, Int, Tensor};
use kiln_operations::RunningSums;

use super::options::StepOptions;
use super::recorder::Role;

type Tracked = Autodiff<Capture>;

pub(super) fn joined(path: &[String]) -> String {
    path.join(".")
}

/// The tensors of a module by path. Lazy ones are initialised.
#[derive(Default)]
pub(super) struct Parameters {
    pub(super) found: Vec<(TensorId, Role)>,
    /// Paths of the parameters that learn.
    pub(super) learned: Vec<String>,
    pub(super) path: Vec<String>,
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if param.is_require_grad() {
            self.learned.push(joined(&self.path));
        }
        self.found.extend(id_of(value).map(|id| (id, Role::Parameter(joined(&self.path)))));
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let value = param.val();
        let id = match value.is_autodiff() {
            true => value.try_into_primitive::<Tracked>().map(|primitive| primitive.id()).ok(),
            false => value.try_into_primitive::<Capture>().map(|primitive| primitive.id()).ok(),
        };
        self.found.extend(id.map(|id| (id, Role::Parameter(joined(&self.path)))));
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let value = param.val();
        let id = match value.is_autodiff() {
            true => value.try_into_primitive::<Tracked>().map(|primitive| primitive.id()).ok(),
            false => value.try_into_primitive::<Capture>().map(|primitive| primitive.id()).ok(),
        };
        self.found.extend(id.map(|id| (id, Role::Parameter(joined(&self.path)))));
    }
}

pub(super) fn id_of<const D: usize>(tensor: Tensor<D>) -> Option<TensorId> {
    match tensor.is_autodiff() {
        true => Some(tensor.try_into_primitive::<Tracked>().ok()?.primitive().id()),
        false => Some(tensor.try_into_primitive::<Capture>().ok()?.id()),
    }
}

pub(super) fn untracked<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if !tensor.is_autodiff() {
        return tensor;
    }
    match tensor.clone().try_into_primitive::<Tracked>() {
        Ok(primitive) => Tensor::from_primitive::<Capture>(primitive.into_primitive()),
        Err(_) => tensor,
    }
}

/// Takes buffers (running statistics, frozen parameters) off the graph. burn's dispatch cannot do it for a captured tensor.
pub(super) struct Untrack;

impl ModuleMapper for Untrack {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.is_require_grad() {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, untracked(tensor), mapper)
    }
}

/// A gradient of zeros for every parameter that learns, in f32 or in the parameter's dtype.
pub(super) struct FirstGradients<'a> {
    pub(super) gradients: &'a mut GradientsParams,
    pub(super) in_f32: bool,
}

impl ModuleVisitor for FirstGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            let value = untracked(param.val());
            let dtype = if self.in_f32 { DType::F32 } else { value.dtype() };
            self.gradients.register(param.id, Tensor::<D>::zeros(value.shape(), (&value.device(), dtype)));
        }
    }
}

/// Takes the gradients out of burn's container.
pub(super) struct Take {
    pub(super) gradients: <Tracked as AutodiffBackend>::Gradients,
    pub(super) taken: GradientsParams,
    pub(super) path: Vec<String>,
    /// The paths of their parameters.
    pub(super) apart: BTreeSet<String>,
}

impl ModuleVisitor for Take {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad()
            && let Ok(primitive) = param.val().try_into_primitive::<Tracked>()
            && let Some(gradient) = Tracked::grad_remove(&primitive, &mut self.gradients)
        {
            self.taken.register(param.id, Tensor::<D>::from_primitive::<Capture>(gradient));
            self.apart.insert(joined(&self.path));
        }
    }
}

/// Leaves out the sums of parameters that have running sums.
pub(super) struct DropBegun<'a> {
    pub(super) running: &'a RunningSums,
    pub(super) sums: &'a mut GradientsParams,
}

impl ModuleVisitor for DropBegun<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.running.uses_of(param.id) > 0 {
            drop(self.sums.remove::<D>(param.id));
        }
    }
}

/// Finds the paths of the parameters that several operations use.
pub(super) struct Shared<'a> {
    pub(super) running: &'a RunningSums,
    pub(super) path: Vec<String>,
    pub(super) found: BTreeSet<String>,
}

impl ModuleVisitor for Shared<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.running.uses_of(param.id) > 1 {
            self.found.insert(joined(&self.path));
        }
    }
}

/// Moves gradients into other ones, and adds those that are in both.
pub(super) struct Join<'a> {
    pub(super) from: GradientsParams,
    pub(super) to: &'a mut GradientsParams,
}

impl ModuleVisitor for Join<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.from.remove::<D>(param.id) {
            let gradient = match self.to.remove::<D>(param.id) {
                Some(other) => gradient + other.cast(DType::F32),
                None => gradient,
            };
            self.to.register(param.id, gradient);
        }
    }
}

/// Sums and scales gradients as the [`StepOptions`] require.
pub(super) struct Sums {
    pub(super) options: StepOptions,
    pub(super) gradients: GradientsParams,
    pub(super) sum: GradientsParams,
    pub(super) found: Vec<(TensorId, Role)>,
    pub(super) path: Vec<String>,
}

impl ModuleVisitor for Sums {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(mut gradient) = self.gradients.remove::<D>(param.id) else { return };
        let path = joined(&self.path);
        if self.options.gradients_in_f32 && gradient.dtype() != DType::F32 {
            gradient = gradient.cast(DType::F32);
        }
        self.found.extend(id_of(gradient.clone()).map(|id| (id, Role::Gradient(path.clone()))));
        if let Some(sum) = self.sum.remove::<D>(param.id) {
            gradient = sum + gradient;
        }
        if self.options.scale_gradients && self.options.update_chunks.is_none() {
            gradient = gradient * 0.5;
        }
        self.found.extend(id_of(gradient.clone()).map(|id| (id, Role::Gradient(path))));
        self.gradients.register(param.id, gradient);
    }
}

/// Notes the sums, and the ids of the parameters whose sums the backward pass goes on with.
pub(super) struct NoteSums<'a> {
    pub(super) sums: &'a mut Sums,
    pub(super) in_place: &'a BTreeSet<String>,
    pub(super) ids: &'a mut HashSet<ParamId>,
}

impl ModuleVisitor for NoteSums<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.sums.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.sums.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = joined(&self.sums.path);
        if self.in_place.contains(&path) {
            self.ids.insert(param.id);
        }
        let id = self.sums.sum.get::<D>(param.id).and_then(id_of);
        self.sums.found.extend(id.map(|id| (id, Role::Gradient(path))));
    }
}

/// Computes the sum of squares of every gradient. On the CPU device, kiln-precision squares a large gradient in parts and takes less
/// memory. The peak does not depend on it, since the update of the same parameter makes a tensor of this size as well.
pub(super) struct Norm<'a>(pub(super) &'a GradientsParams);

impl ModuleVisitor for Norm<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(self.0.get::<D>(param.id).map(|gradient| gradient.square().sum()));
    }
}
