use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

/// Sum of squares of all gradients of `model`, in f32, as a tensor of one element on the device: nothing is
/// read back. `None` when no parameter has a gradient. Its square root is the global norm.
pub fn sum_of_squares(model: &impl Module, gradients: &GradientsParams) -> Option<Tensor<1>> {
    struct Sum<'a>(&'a GradientsParams, Vec<Tensor<1>>);
    impl ModuleVisitor for Sum<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.push(gradient.cast(DType::F32).square().sum());
            }
        }
    }
    let mut sum = Sum(gradients, vec![]);
    model.visit(&mut sum);
    (!sum.1.is_empty()).then(|| Tensor::cat(sum.1, 0).sum())
}

/// The factor that brings gradients of global norm `norm` down to `max_norm`, at most 1
/// (Pascanu et al. 2013; torch's `clip_grad_norm_`).
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

/// Multiplies every gradient of `model` by `factor`; shapes and dtypes stay as they are.
pub fn scale(model: &impl Module, gradients: GradientsParams, factor: f64) -> GradientsParams {
    struct Scale(GradientsParams, f64);
    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                self.0.register(param.id, gradient * self.1);
            }
        }
    }
    let mut scale = Scale(gradients, factor);
    model.visit(&mut scale);
    scale.0
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
