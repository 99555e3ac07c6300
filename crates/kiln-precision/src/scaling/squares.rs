//! The sum of squares of one gradient, in an order that does not depend on threads.

use std::ops::Range;

use burn::tensor::{DType, Device, Tensor};

/// The sum of squares of one gradient in f32, on its device. On burn's CPU device it has the same bits in every run. The sum over the
/// gradients of a model, in the order of its parameters, is [`sum_of_squares`](crate::sum_of_squares).
pub fn squares_of<const D: usize>(gradient: Tensor<D>) -> Tensor<1> {
    #[cfg(feature = "flex")]
    if flex::is_large(&gradient.device(), gradient.shape().num_elements()) {
        return flex::in_halves(gradient);
    }
    gradient.cast(DType::F32).square().sum()
}

/// The sum of squares of a gradient of `rows` rows of `width` values, which `read` reads some rows at a time on `device`, one range after the
/// other. It has the bits of [`squares_of`] of all rows. Few rows are in memory at a time if the gradient is large and the device is burn's CPU device.
///
/// # Errors
/// The first of `read`.
pub fn squares_of_rows<E>(
    [rows, width]: [usize; 2],
    device: &Device,
    mut read: impl FnMut(Range<usize>) -> Result<Tensor<2>, E>,
) -> Result<Tensor<1>, E> {
    #[cfg(feature = "flex")]
    if flex::is_large(device, rows * width) {
        return flex::of_rows(0..rows, width, &mut read);
    }
    let _ = (width, device);
    Ok(squares_of(read(0..rows)?))
}

/// The sum on burn's CPU device.
#[cfg(feature = "flex")]
mod flex {
    use std::ops::Range;

    use burn::backend::DispatchDevice;
    use burn::tensor::{DType, Device, Tensor};
    use kiln_operations::LARGE_SUM;

    /// The largest number of elements of a part. It stays in a core's cache with its squares, and few are added to each number that the
    /// processor sums at a time: squares of 16-bit values are all rounded to the same side, by 4e-6 of a sum of eight times as many on
    /// processors with vectors of eight.
    const PART: usize = 16 << 10;

    /// Whether burn would sum so many values in any order.
    pub(super) fn is_large(device: &Device, values: usize) -> bool {
        matches!(device.as_dispatch(), DispatchDevice::Flex(_)) && values >= LARGE_SUM
    }

    /// Works as [`in_halves`], with rows that are read when their turn comes.
    pub(super) fn of_rows<E>(
        rows: Range<usize>,
        width: usize,
        read: &mut impl FnMut(Range<usize>) -> Result<Tensor<2>, E>,
    ) -> Result<Tensor<1>, E> {
        if rows.len() <= 1 || rows.len() * width <= PART {
            return Ok(in_halves(read(rows)?));
        }
        let half = rows.start + rows.len() / 2;
        Ok(of_rows(rows.start..half, width, read)? + of_rows(half..rows.end, width, read)?)
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
