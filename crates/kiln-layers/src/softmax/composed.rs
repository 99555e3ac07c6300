//! Softmax over the last dimension in a backend's own operations.
//!
//! Peak memory in addition to inputs and output: two f32 tensors of the input's size in each direction, and two values for each row. If
//! burn fuses (its feature `fusion`), at most one such tensor exists.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};

use crate::composed::Wide;

pub(super) fn forward<B: Backend>(x: &FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    if shape.num_elements() == 0 {
        return x.clone();
    }
    let last = shape.num_dims() - 1;
    let exponentials = (Wide::<B>::of(x) - Wide::<B>::of(x).largest(last)).exp();
    let sums = exponentials.clone().sum(&[last]);
    (exponentials / sums).narrow(x.dtype())
}

/// The gradient of the input. `y` is the output.
pub(super) fn backward<B: Backend>(y: &FloatTensor<B>, gradient: &FloatTensor<B>) -> FloatTensor<B> {
    let shape = y.shape();
    if shape.num_elements() == 0 {
        return gradient.clone();
    }
    let products = (Wide::<B>::of(y) * Wide::of(gradient)).sum(&[shape.num_dims() - 1]);
    (Wide::<B>::of(y) * (Wide::of(gradient) - products)).narrow(y.dtype())
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;

    use super::{backward, forward};
    use crate::composed::tests::{DTYPES, assert_close, numbers};
    use crate::softmax::graph::SoftmaxKernels;

    #[test]
    fn as_the_kernels() {
        for dtype in DTYPES {
            for shape in [[0, 3, 2], [1, 1, 1], [3, 5, 37]] {
                let [x, gradient] = [1, 2].map(|seed| numbers(shape, seed, 4.0, dtype));
                let y = Flex::softmax_of_rows(x.clone());
                assert_close(&forward::<Flex>(&x), &y, &format!("{dtype:?}"));
                let expected = Flex::softmax_of_rows_backward(y.clone(), gradient.clone());
                assert_close(&backward::<Flex>(&y, &gradient), &expected, &format!("{dtype:?}"));
            }
        }
    }
}
