//! The sum of squares of one gradient, in an order that does not depend on threads.

use burn::tensor::{DType, Tensor};

/// The sum of squares of one gradient in f32, on its device. On burn's CPU device it has the same bits in every run. The sum over the
/// gradients of a model, in the order of its parameters, is [`sum_of_squares`](crate::sum_of_squares).
pub fn squares_of<const D: usize>(gradient: Tensor<D>) -> Tensor<1> {
    #[cfg(feature = "flex")]
    if flex::sums_in_any_order(&gradient) {
        return flex::in_halves(gradient);
    }
    gradient.cast(DType::F32).square().sum()
}

/// The sum on burn's CPU device.
#[cfg(feature = "flex")]
mod flex {
    use burn::backend::DispatchDevice;
    use burn::tensor::{DType, Tensor};
    use kiln_operations::LARGE_SUM;

    /// The largest number of elements of a part, so that the part and its squares stay in a core's cache.
    const PART: usize = 128 << 10;

    pub(super) fn sums_in_any_order<const D: usize>(gradient: &Tensor<D>) -> bool {
        matches!(gradient.device().as_dispatch(), DispatchDevice::Flex(_))
            && gradient.shape().num_elements() >= LARGE_SUM
    }

    /// Adds the sums of both halves, recursively. The place where a tensor is cut depends only on its shape.
    pub(super) fn in_halves<const D: usize>(gradient: Tensor<D>) -> Tensor<1> {
        let dims = gradient.dims();
        // Halves along the first axis lie side by side in memory.
        match dims.iter().position(|length| *length > 1) {
            Some(axis) if dims.iter().product::<usize>() > PART => {
                let half = dims[axis] / 2;
                let first = in_halves(gradient.clone().narrow(axis, 0, half));
                first + in_halves(gradient.narrow(axis, half, dims[axis] - half))
            }
            _ => gradient.cast(DType::F32).square().sum(),
        }
    }
}
