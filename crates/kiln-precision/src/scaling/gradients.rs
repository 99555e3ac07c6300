//! All gradients of a model: their norm, the parameters they belong to, and their scale.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use super::squares;
#[cfg(feature = "cube")]
use super::squares_on_gpu;

/// One visit to the gradients of a model's parameters. Nothing is read back from the device.
pub(super) struct Survey<'a> {
    gradients: &'a GradientsParams,
    path: Vec<String>,
    /// Parameters that have a gradient; a shared parameter is visited twice and counts once.
    seen: HashSet<ParamId>,
    /// The sum of squares of each gradient in f32, in the order of the parameters.
    squares: Vec<Tensor<1>>,
    /// Those on CubeCL devices, many of which are added at once.
    #[cfg(feature = "cube")]
    waiting: squares_on_gpu::Waiting,
    /// The path of the first parameter whose gradient is f16.
    pub(super) f16: Option<String>,
}

impl<'a> Survey<'a> {
    pub(super) fn of(model: &impl Module, gradients: &'a GradientsParams) -> Self {
        let mut survey = Self {
            gradients,
            path: vec![],
            seen: HashSet::new(),
            squares: vec![],
            #[cfg(feature = "cube")]
            waiting: Default::default(),
            f16: None,
        };
        model.visit(&mut survey);
        survey
    }

    /// The number of gradients that belong to no parameter of the model.
    pub(super) fn foreign(&self) -> usize {
        self.gradients.len() - self.seen.len()
    }

    /// The sum of squares of all gradients, on the device of the last one; none when there is no gradient.
    pub(super) fn sum_of_squares(self) -> Option<Tensor<1>> {
        // The order of the parameters is fixed, so the sum is reproducible. The parts are added one by one: on CubeCL devices a
        // concatenation can hide that one of its parts was never written for lack of memory. Where parameters are on several devices, the
        // sum goes from one to the next, so that the order and the bits stay.
        let sum = self.squares.into_iter().reduce(|sum, part| sum.to_device(&part.device()) + part);
        #[cfg(feature = "cube")]
        let sum = self.waiting.add_to(sum);
        sum
    }
}

impl ModuleVisitor for Survey<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else { return };
        if !self.seen.insert(param.id) {
            return;
        }
        if self.f16.is_none() && gradient.dtype() == DType::F16 {
            self.f16 = Some(self.path.join("."));
        }
        #[cfg(feature = "cube")]
        let Some(gradient) = self.waiting.take(gradient) else { return };
        self.squares.push(squares::squares_of(gradient));
    }
}

/// The sum of squares of all gradients of `model`, in f32, as a tensor of one element on the device; `None` when no parameter
/// has a gradient. Nothing is read back. The square root of the sum is the global norm. The sum is finite only if every gradient
/// is finite (and their norm is below 1.8e19, the root of the largest number in f32). On burn's CPU device (feature `flex`, on by
/// default) it has the same bits in every run, whatever the number of threads.
pub fn sum_of_squares(model: &impl Module, gradients: &GradientsParams) -> Option<Tensor<1>> {
    Survey::of(model, gradients).sum_of_squares()
}

/// The factor that reduces gradients of global norm `norm` to `max_norm`, at most 1 (Pascanu et al. 2013; torch's
/// `clip_grad_norm_`).
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

/// Multiplies every gradient of `model` by `factor`; the results are f32. Gradients of other parameters are dropped.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clipping_never_increases_gradients_and_reaches_the_limit(norm in 0.0f64..1e6, limit in 1e-3f64..1e3) {
            let factor = clip_factor(norm, limit);
            prop_assert!((0.0..=1.0).contains(&factor));
            prop_assert!(norm * factor <= limit);
            prop_assert!(norm > 0.99 * limit || factor == 1.0);
        }
    }
}
