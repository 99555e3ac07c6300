//! Walks over the parameters of a model, of any rank.

use std::collections::BTreeSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

/// A float parameter of any rank. Tensors have one dimension, are f32 and have no graph.
pub(super) trait AnyParam {
    fn id(&self) -> ParamId;
    fn dtype(&self) -> DType;
    fn requires_grad(&self) -> bool;
    /// The number of elements of the stored value.
    fn elements(&self) -> usize;
    /// The stored value.
    fn values(&self) -> Tensor<1>;
    fn has_gradient(&self, gradients: &GradientsParams) -> bool;
    /// The gradient. If there is none, -0.0 everywhere: `x + -0.0` is `x`, also if `x` is -0.0.
    fn gradient(&self, gradients: &GradientsParams) -> Tensor<1>;
    fn remove_gradient(&self, gradients: &mut GradientsParams);
    fn register_gradient(&self, gradients: &mut GradientsParams, gradient: Tensor<1>);
}

impl<const D: usize> AnyParam for Param<Tensor<D>> {
    fn id(&self) -> ParamId {
        self.id
    }

    fn dtype(&self) -> DType {
        self.base().dtype()
    }

    fn requires_grad(&self) -> bool {
        self.is_require_grad()
    }

    fn elements(&self) -> usize {
        self.base().shape().num_elements()
    }

    fn values(&self) -> Tensor<1> {
        self.base().inner().cast(DType::F32).reshape([self.elements()])
    }

    fn has_gradient(&self, gradients: &GradientsParams) -> bool {
        gradients.get::<D>(self.id).is_some()
    }

    fn gradient(&self, gradients: &GradientsParams) -> Tensor<1> {
        match gradients.get::<D>(self.id) {
            Some(gradient) => gradient.inner().cast(DType::F32).reshape([self.elements()]),
            None => Tensor::full([self.elements()], -0.0, (&self.base().device().inner(), DType::F32)),
        }
    }

    fn remove_gradient(&self, gradients: &mut GradientsParams) {
        gradients.remove::<D>(self.id);
    }

    fn register_gradient(&self, gradients: &mut GradientsParams, gradient: Tensor<1>) {
        let value = self.base();
        gradients.register::<D>(self.id, gradient.to_device(&value.device().inner()).reshape(value.shape()));
    }
}

/// Calls `each` for the float parameters of `model` in the order of the fields, with numbers from zero on. A parameter that two fields share
/// is met once. Of a reparameterized parameter, `each` meets the stored value, then the parameters of the reparameterization.
pub(super) fn for_each(model: &impl Module, each: impl FnMut(usize, &dyn AnyParam)) {
    struct Walk<F> {
        met: BTreeSet<ParamId>,
        each: F,
    }
    impl<F: FnMut(usize, &dyn AnyParam)> ModuleVisitor for Walk<F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.met.insert(param.id) {
                (self.each)(self.met.len() - 1, param);
            }
        }
    }
    model.visit(&mut Walk { met: BTreeSet::new(), each });
}
