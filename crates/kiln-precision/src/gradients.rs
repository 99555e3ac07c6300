use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

/// Sum of squares of all gradients of `model`, in f32, as a tensor of one element on the device: nothing is
/// read back. `None` when no parameter has a gradient. Its square root is the global norm; it is finite only if every
/// gradient is (and their norm is below 1.8e19, the root of f32's largest number).
pub fn sum_of_squares(model: &impl Module, gradients: &GradientsParams) -> Option<Tensor<1>> {
    struct Sum<'a>(&'a GradientsParams, HashMap<ParamId, Tensor<1>>, Vec<ParamId>);
    impl ModuleVisitor for Sum<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // A parameter may be met twice.
            if let Entry::Vacant(entry) = self.1.entry(param.id)
                && let Some(gradient) = self.0.get::<D>(param.id)
            {
                entry.insert(gradient.cast(DType::F32).square().sum());
                self.2.push(param.id);
            }
        }
    }
    let mut sum = Sum(gradients, HashMap::new(), vec![]);
    model.visit(&mut sum);
    // In the order of the parameters: sums must not depend on the order of a map. Added one by one: on CubeCL devices a
    // concatenation can hide that one of its parts was never written for want of memory, a sum does not.
    sum.2.iter().filter_map(|id| sum.1.remove(id)).reduce(|sum, part| sum + part)
}

/// The factor that brings gradients of global norm `norm` down to `max_norm`, at most 1
/// (Pascanu et al. 2013; torch's `clip_grad_norm_`).
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

/// Multiplies every gradient of `model` by `factor`, in f32 whatever their dtype was. Gradients of other parameters are left
/// out.
pub fn scale(model: &impl Module, gradients: GradientsParams, factor: f64) -> GradientsParams {
    struct Scale(GradientsParams, GradientsParams, f64);
    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                self.1.register(param.id, gradient.cast(DType::F32) * self.2);
            }
        }
    }
    let mut scale = Scale(gradients, GradientsParams::new(), factor);
    model.visit(&mut scale);
    scale.1
}

/// How many of `gradients` belong to parameters of `model`.
pub(crate) fn known(model: &impl Module, gradients: &GradientsParams) -> usize {
    struct Known<'a>(&'a GradientsParams, HashSet<ParamId>);
    impl ModuleVisitor for Known<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.get::<D>(param.id).is_some() {
                self.1.insert(param.id);
            }
        }
    }
    let mut known = Known(gradients, HashSet::new());
    model.visit(&mut known);
    known.1.len()
}

/// The path of a parameter whose gradient is f16.
pub(crate) fn f16_gradient(model: &impl Module, gradients: &GradientsParams) -> Option<String> {
    struct Find<'a> {
        gradients: &'a GradientsParams,
        path: Vec<String>,
        found: Option<String>,
    }
    impl ModuleVisitor for Find<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.found.is_none() && self.gradients.get::<D>(param.id).is_some_and(|g| g.dtype() == DType::F16) {
                self.found = Some(self.path.join("."));
            }
        }
    }
    let mut find = Find { gradients, path: vec![], found: None };
    model.visit(&mut find);
    find.found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clipping_never_raises_and_ends_at_the_limit(norm in 0.0f64..1e6, limit in 1e-3f64..1e3) {
            let factor = clip_factor(norm, limit);
            prop_assert!((0.0..=1.0).contains(&factor));
            prop_assert!(norm * factor <= limit);
            prop_assert!(norm > 0.99 * limit || factor == 1.0);
        }
    }
}
