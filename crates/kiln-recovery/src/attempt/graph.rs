//! Isolation of an attempt from burn's autodiff graph.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// A copy of `model` whose parameters are new leaves of burn's autodiff graph, with the same values. A backward pass consumes the graph
/// nodes of its leaves, so an attempt that must be [forgotten](forget) after a failure runs on leaves of its own.
pub fn renewed<M: Module>(model: &M) -> M {
    struct Renew;
    impl ModuleMapper for Renew {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match param.is_require_grad() {
                true => param.map(|tensor| tensor.detach().require_grad()),
                false => param,
            }
        }
    }
    model.clone().map(&mut Renew)
}

/// Makes burn's autodiff release the activations of forward passes of `model` whose loss was dropped.
///
/// burn releases them at the end of the next backward pass over the same leaves, which is too late for a retry. This function
/// runs the smallest backward pass there is. The `work` of an [`attempt`](super::attempt()) calls it when it fails after a
/// forward pass, once for a [renewed] model.
pub fn forget<M: Module>(model: &M) {
    #[derive(Default)]
    struct Smallest {
        elements: usize,
        loss: Option<Tensor<1>>,
    }
    impl ModuleVisitor for Smallest {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let elements = value.shape().num_elements();
            if value.is_require_grad() && elements > 0 && (self.loss.is_none() || elements < self.elements) {
                self.elements = elements;
                self.loss = Some(value.slice(std::array::from_fn::<_, D, _>(|_| 0..1)).sum());
            }
        }
    }
    // If even this runs out of memory, the next backward pass releases them.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let mut smallest = Smallest::default();
        model.visit(&mut smallest);
        drop(smallest.loss.map(|loss| loss.backward()));
    }));
}
