//! Max pooling over planes, on burn's module.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod graph;
mod settings;

use burn::nn::PaddingConfig2d;
use burn::nn::pool::MaxPool2d;
use burn::tensor::Tensor;
use kiln_operations::run;

use crate::check::main_input;
use crate::error::Error;
use settings::POSITIONS;

pub(crate) use settings::Windows;

/// The largest value of each window, with the settings of `pool`: kernel size, stride, padding, dilation and ceil mode.
///
/// `x` is `[samples, channels, height, width]` in f32, f16 or bf16. As in burn and torch, padding is never the largest value, the first
/// of equal values gets the gradient, NaN is larger than all numbers (the last NaN gets the gradient), and in ceil mode a last window
/// that would start in the padding at the end is left out. Keeps one byte for each value of the output, the position in its window; burn
/// keeps the input and 4 or 8 bytes for each value. Windows of more than 255 positions are pooled by burn's own operation.
///
/// # Errors
/// [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`], and [`Error::InvalidSetting`] for a kernel size, stride or dilation of 0
/// and for a window that is larger than the padded input.
pub fn max_pool2d(pool: &MaxPool2d, x: Tensor<4>) -> Result<Tensor<4>, Error> {
    main_input("the input", &x)?;
    let [_, _, height, width] = x.dims();
    let windows = windows(pool, [height, width])?;
    if windows.kernel[0] * windows.kernel[1] > POSITIONS {
        return Ok(pool.forward(x));
    }
    Ok(Tensor::from_dispatch(run(windows, vec![x.into_dispatch()]).remove(0)))
}

fn windows(pool: &MaxPool2d, input: [usize; 2]) -> Result<Windows, Error> {
    let mut windows = Windows {
        input,
        output: [0; 2],
        kernel: pool.kernel_size,
        stride: pool.stride,
        dilation: pool.dilation,
        padding: [0; 2],
    };
    let settings =
        [("the kernel size", windows.kernel), ("the stride", windows.stride), ("the dilation", windows.dilation)];
    for (name, values) in settings {
        if values.contains(&0) {
            let value = format!("{values:?}");
            return Err(Error::InvalidSetting { name, value, expected: "two positive numbers" });
        }
    }
    for side in 0..2 {
        let (size, kernel, stride) = (input[side], windows.kernel[side], windows.stride[side]);
        let (before, after) = match &pool.padding {
            PaddingConfig2d::Valid => (0, 0),
            PaddingConfig2d::Same => {
                let covered = size.div_ceil(stride).saturating_sub(1) * stride + kernel;
                let all = if size == 0 { 0 } else { covered.saturating_sub(size) };
                (all / 2, all - all / 2)
            }
            PaddingConfig2d::Explicit(top, left, bottom, right) => [(*top, *bottom), (*left, *right)][side],
        };
        let (padded, extent) = (size + before + after, windows.dilation[side] * (kernel - 1) + 1);
        // In ceil mode the last window may reach beyond the padding.
        let beyond = if pool.ceil_mode { stride - 1 } else { 0 };
        let Some(room) = (padded + beyond).checked_sub(extent) else {
            return Err(Error::InvalidSetting {
                name: "the extent of the pooling window",
                value: extent.to_string(),
                expected: "at most the size of the padded input",
            });
        };
        let count = room / stride + 1;
        let in_padding = pool.ceil_mode && count > 1 && (count - 1) * stride >= size + before;
        windows.output[side] = count - usize::from(in_padding);
        windows.padding[side] = before;
    }
    Ok(windows)
}
