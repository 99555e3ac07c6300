//! 2-D convolution on burn's module.

mod composed;
#[cfg(feature = "flex")]
mod correlation;
mod cost;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod graph;
#[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "kernels use the rest"))]
mod plan;
#[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "kernels use the rest"))]
mod portions;
#[cfg(feature = "cube")]
mod product;
mod settings;
#[cfg(feature = "flex")]
mod tile;
#[cfg(feature = "flex")]
mod weight;
#[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "kernels use the rest"))]
mod weight_portions;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::{Shape, Tensor};
use kiln_operations::run;

use crate::check::{main_input, same_dtype, same_size};
use crate::error::Error;

pub(crate) use graph::{
    conv2d_bias_gradient, conv2d_forward, conv2d_input_gradient, conv2d_weight_gradient, gradients,
};
pub(crate) use settings::Geometry;

/// The convolution of `x` with the weight of `conv`, plus its bias if it has one. Parameters and records stay burn's.
///
/// `x` is `[images, channels in, height, width]` in f32, f16 or bf16, the dtype of the weight. The result is
/// `[images, channels out, height out, width out]`. All settings of the module apply: stride, dilation, groups, and padding as in
/// [`Conv2d::forward`]. Sums are computed in f32. Keeps only the input. Gradients that are not needed are not computed.
///
/// A convolution is a sum of products of the weights with shifted images (Anderson et al. 2017, Low-memory GEMM-based convolution). A few
/// padded images stay in the cache, and the columns of im2col are not copied.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`], [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`], and [`Error::InvalidSetting`] for a
/// stride, dilation or number of groups that is impossible, or when the kernel is larger than the padded input.
pub fn conv2d(conv: &Conv2d, x: Tensor<4>) -> Result<Tensor<4>, Error> {
    let convolution = convolution(conv, &x)?;
    let Convolution { weight, bias, geometry } = convolution;
    Ok(Tensor::from_dispatch(run(geometry, vec![x.into_dispatch(), weight, bias]).remove(0)))
}

/// Checks `conv` against `x`, and returns its weight, bias and geometry. Without a bias, the bias has no values.
pub(crate) fn convolution(conv: &Conv2d, x: &Tensor<4>) -> Result<Convolution, Error> {
    let weight = conv.weight.val();
    let [_, channels, height, width] = x.dims();
    let [outputs, each, kernel_height, kernel_width] = weight.dims();
    main_input("the input", x)?;
    same_dtype(("the input", x.dtype()), ("the weight", weight.dtype()))?;
    for (name, value) in [
        ("the stride", conv.stride[0].min(conv.stride[1])),
        ("the dilation", conv.dilation[0].min(conv.dilation[1])),
        ("the size of the kernel", kernel_height.min(kernel_width)),
        ("the number of groups", conv.groups),
    ] {
        if value == 0 {
            return Err(Error::InvalidSetting { name, value: value.to_string(), expected: "at least 1" });
        }
    }
    if outputs % conv.groups != 0 {
        return Err(Error::InvalidSetting {
            name: "the number of groups",
            value: conv.groups.to_string(),
            expected: "a divisor of the number of output channels",
        });
    }
    same_size(
        ("the number of channels of the input", channels),
        ("the number of input channels of the weight", each * conv.groups),
    )?;
    let [[top, bottom], [left, right]] = padding(conv, [height, width]);
    let geometry = Geometry {
        stride: conv.stride,
        before: [top, left],
        after: [bottom, right],
        dilation: conv.dilation,
        groups: conv.groups,
    };
    let [high, wide] = geometry.extent([kernel_height, kernel_width]);
    for (name, padded, extent, expected) in [
        ("the height of the padded input", height + top + bottom, high, "at least the height of the dilated kernel"),
        ("the width of the padded input", width + left + right, wide, "at least the width of the dilated kernel"),
    ] {
        if padded < extent {
            let value = format!("{padded} with a kernel of {extent}");
            return Err(Error::InvalidSetting { name, value, expected });
        }
    }
    let bias = match &conv.bias {
        Some(bias) => {
            let (bias, outputs) = (bias.val(), ("the number of output channels of the weight", outputs));
            same_size(outputs, ("the length of the bias", bias.dims()[0]))?;
            same_dtype(("the weight", weight.dtype()), ("the bias", bias.dtype()))?;
            bias
        }
        None => Tensor::empty([0], (&weight.device(), weight.dtype())),
    };
    Ok(Convolution { weight: weight.into_dispatch(), bias: bias.into_dispatch(), geometry })
}

/// The zeros before and after the image, for height and width, as burn computes them.
fn padding(conv: &Conv2d, input: [usize; 2]) -> [[usize; 2]; 2] {
    match conv.padding {
        PaddingConfig2d::Valid => [[0, 0], [0, 0]],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [[top, bottom], [left, right]],
        PaddingConfig2d::Same => [0, 1].map(|side| {
            let steps = input[side].div_ceil(conv.stride[side]).saturating_sub(1);
            let needed = if input[side] == 0 { 0 } else { steps * conv.stride[side] + conv.kernel_size[side] };
            let zeros = needed.saturating_sub(input[side]);
            [zeros / 2, zeros - zeros / 2]
        }),
    }
}

/// The weight, bias and geometry of a convolution.
#[derive(Clone, Debug)]
pub(crate) struct Convolution {
    pub(crate) weight: DispatchTensor,
    pub(crate) bias: DispatchTensor,
    pub(crate) geometry: Geometry,
}

impl Convolution {
    /// The shape of the output for an input of shape `x`.
    pub(crate) fn output(&self, x: &Shape) -> Shape {
        let kernel = self.weight.shape();
        let [height, width] = self.geometry.output([x[2], x[3]], [kernel[2], kernel[3]]);
        Shape::new([x[0], kernel[0], height, width])
    }
}
