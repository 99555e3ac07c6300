//! Addition and ReLU in a backend's own operations.
//!
//! Peak memory in addition to inputs and outputs: one f32 tensor and a mask in each direction. burn fuses them away if it can.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};

use crate::composed::Wide;

pub(super) fn forward<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = a.dtype();
    let sum = Wide::<B>::of(&a) + Wide::<B>::of(&b);
    sum.clone().fill(sum.not_positive(), 0.0).narrow(dtype)
}

pub(super) fn backward<B: Backend>(y: FloatTensor<B>, gradient: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = y.dtype();
    Wide::<B>::of(&gradient).fill(Wide::<B>::of(&y).not_positive(), 0.0).narrow(dtype)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;

    use super::{backward, forward};
    use crate::add_relu::graph::AddReluKernels;
    use crate::composed::tests::{DTYPES, assert_close, numbers};

    #[test]
    fn as_the_kernels() {
        for dtype in DTYPES {
            let [a, b, gradient] = [1, 2, 3].map(|seed| numbers([3, 5, 7], seed, 1.0, dtype));
            let y = Flex::add_relu(a.clone(), b.clone());
            assert_close(&forward::<Flex>(a, b), &y, "forward");
            let kernel = Flex::add_relu_backward(y.clone(), gradient.clone());
            assert_close(&backward::<Flex>(y, gradient), &kernel, "backward");
        }
    }
}
