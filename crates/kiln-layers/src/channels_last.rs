//! Rows of channels: burn's convolutions on CubeCL store their tensors so.

use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::{permute_nchw_to_nhwc, permute_nhwc_to_nchw};
use burn_cubecl::tensor::CubeTensor;

/// A tensor `[samples, channels, ..]` with its channels last. It is copied only if it is not stored so.
pub(crate) fn rows(tensor: CubeTensor) -> CubeTensor {
    into_contiguous(permute_nchw_to_nhwc(tensor))
}

/// A tensor of such rows with its channels as the second dimension.
pub(crate) fn of_rows(tensor: CubeTensor) -> CubeTensor {
    permute_nhwc_to_nchw(tensor)
}
