//! The bits that the tests compare, and the turns they take.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use kiln_checkpointing::{TensorMap, Tensors};

/// The device's random numbers and the counting allocator belong to the process: tests that use them take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tensor whose gradient is asked for.
pub(crate) fn leaf<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.detach().require_grad()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Bits of all floats.
pub(crate) fn float_bits(tensors: impl Tensors) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl TensorMap for Bits {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.extend(values(tensor.clone()));
            tensor
        }
    }
    let mut bits = Bits(vec![]);
    let _ = tensors.map(&mut bits);
    bits.0
}

/// Gradients of a loss that weighs every output element differently.
pub(crate) fn gradients(outputs: impl Tensors) -> Gradients {
    loss(outputs).backward()
}

/// A loss that weighs every output element differently.
pub(crate) fn loss(outputs: impl Tensors) -> Tensor<1> {
    struct Loss(Option<Tensor<1>>);
    impl TensorMap for Loss {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            let count = tensor.shape().num_elements();
            let flat: Tensor<1> = tensor.clone().reshape([count]);
            let weights = Tensor::<1, burn::tensor::Int>::arange(0..count as i64, &tensor.device()).float();
            let part = (flat.square() * (weights * 0.37).sin()).sum();
            self.0 = Some(match self.0.take() {
                Some(loss) => loss + part,
                None => part,
            });
            tensor
        }
    }
    let mut loss = Loss(None);
    let _ = outputs.map(&mut loss);
    loss.0.unwrap()
}

/// Bits of the gradients of the inputs that have one.
pub(crate) fn input_gradients(inputs: impl Tensors, gradients: &Gradients) -> Vec<u32> {
    struct Collect<'a>(&'a Gradients, Vec<u32>);
    impl TensorMap for Collect<'_> {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            if let Some(gradient) = tensor.grad(self.0) {
                self.1.extend(values(gradient));
            }
            tensor
        }
    }
    let mut collect = Collect(gradients, vec![]);
    let _ = inputs.map(&mut collect);
    collect.1
}

/// Bits of the gradients of all parameters, and of the running statistics.
pub(crate) fn bits(module: &impl Module, gradients: &Gradients) -> [Vec<u32>; 2] {
    struct Collect<'a>(&'a Gradients, Vec<u32>, Vec<u32>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            match tensor.is_require_grad() {
                // A parameter without a gradient is noted as such.
                true => self.1.extend(tensor.grad(self.0).map_or(vec![u32::MAX], values)),
                false => self.2.extend(values(tensor)),
            }
        }
    }
    let _ = module.valid(); // folds running statistics in
    let mut collect = Collect(gradients, vec![], vec![0]);
    module.visit(&mut collect);
    [collect.1, collect.2]
}
