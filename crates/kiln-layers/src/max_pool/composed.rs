//! Max pooling by a backend's own pooling. It keeps positions of one byte, where the device has bytes, instead of the backend's
//! indices.
//!
//! Peak memory in addition to inputs and outputs. Forward: a padded copy of the input in its dtype, if windows extend beyond the input.
//! Backward: two padded inputs in f32. In both directions: the backend's indices, 4 bytes for each value of the output, and three more
//! such tensors if burn does not fuse.
//!
//! NaN and equal values are handled as in the backend's own pooling.

use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::ops::PadMode;
use burn::tensor::{DType, IntDType, Shape};

use super::settings::{POSITIONS, Windows, with_planes};
use crate::composed::{Wide, bools, full, slice};

impl Windows {
    /// Number of rows and of columns by which windows extend beyond the input, before and after it.
    fn beyond(self) -> [(usize, usize); 2] {
        [0, 1].map(|side| {
            let extent = self.dilation[side] * (self.kernel[side] - 1) + 1;
            let end = (self.output[side].max(1) - 1) * self.stride[side] + extent;
            (self.padding[side], end.saturating_sub(self.input[side] + self.padding[side]))
        })
    }

    /// Sizes of a plane with this padding.
    fn padded(self) -> [usize; 2] {
        let beyond = self.beyond();
        [0, 1].map(|side| beyond[side].0 + self.input[side] + beyond[side].1)
    }

    /// The first row (or column) of each window in the padded plane, as a tensor along the corresponding one of four dimensions.
    fn starts<B: Backend>(self, side: usize, device: &Device<B>) -> IntTensor<B> {
        let mut shape = [1; 4];
        shape[2 + side] = self.output[side];
        let numbers = B::int_arange(0..self.output[side] as i64, device, IntDType::I32);
        B::int_reshape(B::int_mul_scalar(numbers, self.stride[side].into()), Shape::new(shape))
    }
}

/// The dtype of positions: `U8`, or `I32` on a device without it, as with WGSL.
fn of_positions<B: Backend>(device: &Device<B>) -> IntDType {
    if B::supports_dtype(device, DType::U8) { IntDType::U8 } else { IntDType::I32 }
}

/// The output, and the [positions](of_positions) in the windows if they are wanted.
pub(super) fn forward<B: Backend>(
    x: FloatTensor<B>,
    windows: Windows,
    wanted: bool,
) -> (FloatTensor<B>, Option<IntTensor<B>>) {
    let (shape, dtype, device) = (with_planes(&x.shape(), windows.output), x.dtype(), x.device());
    if shape.num_elements() == 0 {
        let positions = wanted.then(|| B::int_zeros(shape.clone(), &device, of_positions::<B>(&device)));
        return (full::<B>(shape, 0.0, &device, dtype), positions);
    }
    let beyond = windows.beyond();
    let x = match beyond == [(0, 0); 2] {
        true => x,
        false => B::float_pad(x, &[(0, 0), (0, 0), beyond[0], beyond[1]], PadMode::Constant(f32::NEG_INFINITY)),
    };
    let Windows { kernel, stride, dilation, .. } = windows;
    if !wanted {
        return (B::max_pool2d(x, kernel, stride, [0; 2], dilation, false), None);
    }
    let pooled = B::max_pool2d_with_indices(x, kernel, stride, [0; 2], dilation, false, IntDType::I32);
    let width = windows.padded()[1];
    let within = |index: IntTensor<B>, side: usize| {
        let offset = B::int_sub(index, windows.starts::<B>(side, &device));
        B::int_div_scalar(offset, dilation[side].into())
    };
    let row = within(B::int_div_scalar(pooled.indices.clone(), width.into()), 0);
    let column = within(B::int_remainder_scalar(pooled.indices, width.into()), 1);
    let positions = B::int_add(B::int_mul_scalar(row, kernel[1].into()), column);
    let padding = B::float_equal_elem(pooled.output.clone(), f32::NEG_INFINITY.into(), bools::<B>(&device));
    let positions = B::int_mask_fill(positions, padding, POSITIONS.into());
    (pooled.output, Some(B::int_cast(positions, of_positions::<B>(&device))))
}

/// The gradient of the input.
pub(super) fn backward<B: Backend>(
    positions: IntTensor<B>,
    gradient: FloatTensor<B>,
    windows: Windows,
) -> FloatTensor<B> {
    let (shape, dtype, device) = (gradient.shape(), gradient.dtype(), gradient.device());
    if shape.num_elements() == 0 {
        return full::<B>(with_planes(&shape, windows.input), 0.0, &device, dtype);
    }
    let Windows { kernel, stride, dilation, .. } = windows;
    let positions = B::int_cast(positions, IntDType::I32);
    let none = B::int_equal_elem(positions.clone(), POSITIONS.into(), bools::<B>(&device));
    let positions = B::int_mask_fill(positions, none.clone(), 0i64.into());
    let place = |offset: IntTensor<B>, side: usize| {
        B::int_add(B::int_mul_scalar(offset, dilation[side].into()), windows.starts::<B>(side, &device))
    };
    let row = place(B::int_div_scalar(positions.clone(), kernel[1].into()), 0);
    let column = place(B::int_remainder_scalar(positions, kernel[1].into()), 1);
    let [height, width] = windows.padded();
    let indices = B::int_add(B::int_mul_scalar(row, width.into()), column);
    let gradient = Wide::<B>::of(&gradient).fill(none, 0.0).narrow(DType::F32);
    // The backend reads only the shape and dtype of the input.
    let like = full::<B>(with_planes(&shape, [height, width]), 0.0, &device, DType::F32);
    let padded =
        B::max_pool2d_with_indices_backward(like, kernel, stride, [0; 2], dilation, false, gradient, indices).x_grad;
    let [rows, columns] = [0, 1].map(|side| windows.padding[side]..windows.padding[side] + windows.input[side]);
    Wide::<B>::of(&slice::<B>(&padded, &[0..shape[0], 0..shape[1], rows, columns])).narrow(dtype)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::{Flex, TensorMetadata};

    use super::{backward, forward};
    use crate::composed::tests::{DTYPES, assert_close, numbers};
    use crate::max_pool::Windows;
    use crate::max_pool::flex;

    fn windows(input: [usize; 2], [kernel, stride, dilation, padding]: [usize; 4], output: [usize; 2]) -> Windows {
        Windows {
            input,
            output,
            kernel: [kernel; 2],
            stride: [stride; 2],
            dilation: [dilation; 2],
            padding: [padding; 2],
        }
    }

    #[test]
    fn as_the_kernels() {
        for dtype in DTYPES {
            for windows in [
                windows([8, 11], [2, 2, 1, 0], [4, 5]),
                windows([7, 9], [3, 2, 1, 1], [4, 5]),
                windows([7, 8], [3, 1, 2, 2], [7, 8]),
                // These windows are in ceil mode.
                windows([6, 6], [3, 2, 1, 0], [3, 3]),
            ] {
                let what = format!("{dtype:?} {windows:?}");
                let x = numbers([2, 3, windows.input[0], windows.input[1]], 1, 2.0, dtype);
                let (y, positions) = flex::forward(&x, windows, true);
                let (composed, composed_positions) = forward::<Flex>(x.clone(), windows, true);
                assert_close(&composed, &y, &what);
                assert_close(&forward::<Flex>(x, windows, false).0, &y, &what);
                let (kernel, composed) = (positions.unwrap(), composed_positions.unwrap());
                assert_eq!((composed.dtype(), composed.shape()), (kernel.dtype(), kernel.shape()));
                let gradient = numbers([2, 3, windows.output[0], windows.output[1]], 2, 1.0, dtype);
                let expected = flex::backward(&kernel, &gradient, windows);
                assert_close(&backward::<Flex>(composed, gradient, windows), &expected, &what);
            }
        }
    }
}
