//! The product of each plane and a number in a backend's own operations.
//!
//! Peak memory in addition to inputs and outputs: two f32 tensors of the input's size in each direction. burn fuses them away if it can.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};

use crate::composed::Wide;

pub(super) fn forward<B: Backend>(x: FloatTensor<B>, scale: FloatTensor<B>) -> FloatTensor<B> {
    (Wide::<B>::of(&x) * Wide::<B>::of(&scale)).narrow(x.dtype())
}

pub(super) fn backward<B: Backend>(
    x: FloatTensor<B>,
    scale: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> [FloatTensor<B>; 2] {
    let of_scale = (Wide::<B>::of(&gradient) * Wide::<B>::of(&x)).sum(&[3, 2]);
    let of_x = Wide::<B>::of(&gradient) * Wide::<B>::of(&scale);
    [of_x.narrow(gradient.dtype()), of_scale.narrow(scale.dtype())]
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;

    use super::{backward, forward};
    use crate::channel_scale::ChannelScaleKernels;
    use crate::composed::tests::{DTYPES, assert_close, numbers};

    #[test]
    fn as_the_kernels() {
        for dtype in DTYPES {
            for [images, channels, height, width] in [[3, 5, 7, 11], [1, 2, 40, 41], [70, 3, 1, 1], [0, 3, 4, 4]] {
                let [x, gradient] = [1, 2].map(|seed| numbers([images, channels, height, width], seed, 1.0, dtype));
                let scale = numbers([images, channels, 1, 1], 3, 1.0, dtype);
                let y = Flex::channel_scale(x.clone(), scale.clone());
                assert_close(&forward::<Flex>(x.clone(), scale.clone()), &y, "forward");
                let kernel = Flex::channel_scale_backward(x.clone(), scale.clone(), gradient.clone());
                let composed = backward::<Flex>(x, scale, gradient);
                for (composed, kernel) in composed.iter().zip(&kernel) {
                    assert_close(composed, kernel, "backward");
                }
            }
        }
    }
}
