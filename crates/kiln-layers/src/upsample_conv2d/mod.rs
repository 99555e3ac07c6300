//! The convolution of a doubled image joined with another image of its size, on burn's module.

mod phases;
mod steps;

use burn::backend::tensor::FloatTensor;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use kiln_operations::{Computed, KernelBackend, Operation, all, run};

use crate::check::{same_dtype, same_size};
use crate::conv2d::{Geometry, convolution};
use crate::error::Error;
use steps::{backward, forward};

/// The convolution `conv` of `x`, whose height and width are doubled by repeating each pixel, joined with `skip` along the channels. This
/// is the first layer of a block of a U-Net's decoder, in one operation.
///
/// `x` is `[images, channels, height, width]`. `skip` is `[images, other channels, 2 height, 2 width]` in the dtype of `x`. `conv` must
/// be a 3x3 convolution of all these channels with a stride of 1 and zero padding of one pixel. The result is
/// `[images, outputs, 2 height, 2 width]`.
///
/// Keeps `x` and `skip`, which other layers usually keep as well. Neither the doubled image nor the joined one is in memory. Instead, `x`
/// is convolved with four times as many outputs, one for each pixel of a square of two by two. Their weights are sums of those weights of
/// `conv` that read the same pixel. Results differ from those of the single steps by rounding. A small image of many channels is doubled
/// instead, since the additional weights would take more memory.
///
/// # Errors
/// Those of [`conv2d`](crate::conv2d), and [`Error::InvalidSetting`] for another kernel, stride, padding, dilation or number of groups.
pub fn upsample_conv2d(conv: &Conv2d, x: Tensor<4>, skip: Option<Tensor<4>>) -> Result<Tensor<4>, Error> {
    let ([images, channels, height, width], weight) = (x.dims(), conv.weight.val());
    let others = skip.as_ref().map_or(0, |skip| skip.dims()[1]);
    same_size(
        ("the number of channels of both inputs", channels + others),
        ("the number of input channels of the weight", weight.dims()[1]),
    )?;
    if let Some(skip) = &skip {
        same_dtype(("the input", x.dtype()), ("the other input", skip.dtype()))?;
        let sizes = [images, 2 * height, 2 * width].into_iter().zip([skip.dims()[0], skip.dims()[2], skip.dims()[3]]);
        for (doubled, other) in sizes {
            same_size(("a dimension of the doubled input", doubled), ("the same of the other input", other))?;
        }
    }
    // Everything except the number of channels is checked on the part of the weight that reads `x`.
    let part = Conv2d {
        weight: burn::module::Param::initialized(conv.weight.id, weight.clone().narrow(1, 0, channels)),
        ..conv.clone()
    };
    let convolution = convolution(&part, &x)?;
    if convolution.geometry != Geometry::SAME || weight.dims()[2..] != [3, 3] {
        let value = format!("{:?} with a kernel of {:?}", convolution.geometry, &weight.dims()[2..]);
        let expected = "a 3x3 kernel, a stride of 1, zeros of one pixel around, no dilation and one group";
        return Err(Error::InvalidSetting { name: "the convolution", value, expected });
    }
    let inputs = [x.into_dispatch(), weight.into_dispatch(), convolution.bias];
    let inputs = inputs.into_iter().chain(skip.map(Tensor::into_dispatch)).collect();
    Ok(Tensor::from_dispatch(run(UpsampleConv2d, inputs).remove(0)))
}

/// The convolution of the doubled input, alone or joined with another input of the doubled size. Inputs are x, weight, bias, and maybe
/// the other one.
#[derive(Clone, Copy, Debug)]
struct UpsampleConv2d;

impl Operation for UpsampleConv2d {
    const NAME: &'static str = "convolution of a doubled image";

    /// Input, weight and the other input.
    type Saved<B: KernelBackend> = (FloatTensor<B>, FloatTensor<B>, Option<FloatTensor<B>>);

    fn forward<B: KernelBackend>(
        &self,
        mut inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Self::Saved<B>> {
        let skip = inputs.drain(3..).next();
        let [x, weight, bias] = all(inputs);
        let saved = wanted.contains(&true).then(|| (x.clone(), weight.clone(), skip.clone()));
        Computed { outputs: vec![forward::<B>(x, skip, weight, bias)], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (x, weight, skip): Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let wanted = [wanted[0], wanted.get(3) == Some(&true), wanted[1], wanted[2]];
        let [of_x, of_skip, of_weight, of_bias] = backward::<B>((x, skip), weight, gradient, wanted);
        vec![of_x, of_weight, of_bias, of_skip]
    }
}
