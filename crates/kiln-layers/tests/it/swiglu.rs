//! SwiGLU of halves of one tensor.

use burn::tensor::{DType, Device, Tensor, activation};
use kiln_layers::swiglu;

use crate::compare::{distance, tensor, values};

fn formula(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    activation::silu(gate.cast(DType::F32)) * up.cast(DType::F32)
}

#[test]
fn halves_of_one_tensor_and_inputs_that_others_hold_are_taken() {
    let device = Device::flex().autodiff();
    let both = tensor([5, 14], 1, 3.0, DType::F32, &device).require_grad();
    let before = values(&both);
    let run = |f: &dyn Fn(Tensor<2>, Tensor<2>) -> Tensor<2>| {
        let halves = both.clone().chunk(2, 1);
        let y = f(halves[0].clone(), halves[1].clone()) + f(both.clone(), both.clone()).slice([0..5, 0..7]);
        let gradients = (y.clone() * y).sum().backward();
        values(&both.grad(&gradients).unwrap())
    };
    let (got, expected) = (run(&|gate, up| swiglu(gate, up).unwrap()), run(&formula));
    assert!(distance(&got, &expected) < 3e-5);
    assert_eq!(values(&both), before);
    let message = swiglu(Tensor::<2>::zeros([2, 3], &device), Tensor::zeros([2, 4], &device)).unwrap_err().to_string();
    assert_eq!(message, "a dimension of the gate is 3, and that of the other input is 4; expected the same");
}
