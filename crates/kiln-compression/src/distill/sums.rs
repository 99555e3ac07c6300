//! Sums whose order does not depend on threads.

use burn::tensor::Tensor;

/// From this many elements on, burn's CPU device adds partial sums in the order in which threads finish them (burn-flex 0.22), so that
/// the last bits differ from run to run.
const LARGE: usize = 4 << 20;

/// The sum of all elements, `[1]`. Of many elements by one dimension after the other, whose sums have a fixed order.
pub(super) fn sum<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    match x.shape().num_elements() < LARGE {
        true => x.sum(),
        false => (0..D).rev().fold(x, |sum, dim| sum.sum_dim(dim)).reshape([1]),
    }
}

/// The mean of all elements, `[1]`.
pub(super) fn mean<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    match x.shape().num_elements() {
        elements if elements < LARGE => x.mean(),
        elements => sum(x) * (1.0 / elements as f64),
    }
}
