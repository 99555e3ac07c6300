//! SwiGLU in a backend's own operations.
//!
//! Peak memory in addition to inputs and outputs: if burn fuses (its feature `fusion`), each direction is one kernel and takes none.
//! Otherwise it is at most two f32 tensors of an input's size forward, and four backward.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};

use crate::composed::Wide;

pub(super) fn forward<B: Backend>(gate: &FloatTensor<B>, up: &FloatTensor<B>) -> FloatTensor<B> {
    let x = Wide::<B>::of(gate);
    (x.clone().sigmoid() * x * Wide::of(up)).narrow(gate.dtype())
}

/// The gradients of gate and up.
pub(super) fn backward<B: Backend>(
    gate: &FloatTensor<B>,
    up: &FloatTensor<B>,
    gradient: &FloatTensor<B>,
) -> [FloatTensor<B>; 2] {
    let (x, gradient) = (Wide::<B>::of(gate), Wide::<B>::of(gradient));
    let sigmoid = x.clone().sigmoid();
    let of_up = sigmoid.clone() * x.clone() * gradient.clone();
    let slope = ((-sigmoid.clone() + 1.0) * x + 1.0) * sigmoid;
    let of_gate = slope * gradient * Wide::of(up);
    [of_gate.narrow(gate.dtype()), of_up.narrow(up.dtype())]
}
