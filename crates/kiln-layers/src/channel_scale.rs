//! The product of each plane of an image and a number: the end of squeeze-and-excitation.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use kiln_operations::{Call, Cost, Cpu, Kernel, KernelBackend, all};

/// The product, from x and scale, and the gradients of both, from x, scale and the gradient of the product.
#[derive(Clone, Copy, Debug)]
enum ChannelScale {
    Forward,
    Backward,
}

impl Kernel for ChannelScale {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward => &FORWARD,
            Self::Backward => &BACKWARD,
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward => vec![inputs[0].clone()],
            Self::Backward => vec![inputs[2].clone(), inputs[1].clone()],
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match self {
            Self::Forward => {
                let [x, scale] = all(inputs);
                vec![composed::forward::<B>(x, scale)]
            }
            Self::Backward => {
                let [x, scale, gradient] = all(inputs);
                composed::backward::<B>(x, scale, gradient).into()
            }
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        match self {
            Self::Forward => {
                let [x, scale] = all(inputs);
                vec![flex::forward(x, &scale)]
            }
            Self::Backward => {
                let [x, scale, gradient] = all(inputs);
                flex::backward(&x, &scale, gradient).into()
            }
        }
    }
}

/// The product of each plane of `[images, channels, height, width]` and a number. `scale` is `[images, channels, 1, 1]`.
pub(crate) fn channel_scale<B: KernelBackend>(x: FloatTensor<B>, scale: FloatTensor<B>) -> FloatTensor<B> {
    let [y] = all(B::run(&ChannelScale::Forward, vec![x, scale]));
    y
}

/// The gradients of `x` and `scale`.
pub(crate) fn channel_scale_backward<B: KernelBackend>(
    x: FloatTensor<B>,
    scale: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> [FloatTensor<B>; 2] {
    all(B::run(&ChannelScale::Backward, vec![x, scale, gradient]))
}

/// Inputs: x, scale.
static FORWARD: Cost = Cost {
    in_place: &[(0, 0)],
    cpu_scratch: |call, cpu| scratch(call, 1, cpu),
    gpu_scratch: |call, _| call.wide(0, 2),
    ..Cost::new("kiln::channel_scale")
};

/// Inputs: x, scale, gradient.
static BACKWARD: Cost = Cost {
    in_place: &[(2, 0)],
    cpu_scratch: |call, cpu| scratch(call, 2, cpu),
    gpu_scratch: |call, _| call.wide(0, 2),
    ..Cost::new("kiln::channel_scale_backward")
};

/// `count` f32 values for each plane of `[images, channels, height, width]`, and as many buffers of a plane for each thread.
fn scratch(call: &Call<'_>, count: u64, cpu: &Cpu) -> u64 {
    let planes = call.dim(0, 0) * call.dim(0, 1);
    4 * (count * planes) + call.widened(planes, count * call.elements(0) / planes.max(1), cpu)
}

#[cfg(feature = "flex")]
mod flex {
    //! The product of each plane and a number on the CPU: one pass in each direction.
    //!
    //! Scratch memory: one f32 value for each plane forward, two backward; in 16 bits also as many buffers of a plane for each thread.
    //! Multiply-adds for each value: 1 forward, 2 backward. The output is written over the input, and the input's gradient over the output's
    //! gradient, if no other handle to them exists.

    use burn::backend::TensorMetadata;
    use burn::backend::flex::FlexTensor;
    use rayon::prelude::*;

    use kiln_operations::cpu::stored::{Stored, from_f32, owned, to_f32};
    use kiln_operations::simd::pair_sums;
    use kiln_operations::{by_dtype, simd};

    /// The fewest values of a task.
    const TASK: usize = 32 * 1024;

    simd! { fn multiply(plane: &mut [f32], factor: f32) {
        plane.iter_mut().for_each(|value| *value *= factor);
    }}

    simd! {
        /// Multiplies a plane of the gradient by the factor. Returns the sum of the products of gradient and x.
        fn multiply_gradient(gradient: &mut [f32], x: &[f32], factor: f32) -> f32 {
            let [sum, _] = pair_sums(gradient, x, |gradient, x| [gradient * x, 0.0]);
            gradient.iter_mut().for_each(|value| *value *= factor);
            sum
        }
    }

    /// The number of values of a plane, and the fewest planes of a task.
    fn sizes(x: &FlexTensor) -> (usize, usize) {
        let plane = x.shape().iter().skip(2).product::<usize>().max(1);
        (plane, TASK.div_ceil(plane))
    }

    pub(super) fn forward(x: FlexTensor, scale: &FlexTensor) -> FlexTensor {
        fn run<E: Stored>(x: FlexTensor, scale: &[f32]) -> FlexTensor {
            let ((plane, planes), mut y) = (sizes(&x), owned(x));
            let all = y.storage_mut::<E>().par_chunks_mut(plane).zip(scale).with_min_len(planes);
            all.for_each_init(Vec::new, |buffer, (values, factor)| {
                E::changed(values, buffer, |values| multiply(values, *factor));
            });
            y
        }
        if x.shape().num_elements() == 0 {
            return x;
        }
        by_dtype!(x.dtype(), E => run::<E>(x, &to_f32(scale)), else x)
    }

    /// The gradients of `x` and `scale`.
    pub(super) fn backward(x: &FlexTensor, scale: &FlexTensor, gradient: FlexTensor) -> [FlexTensor; 2] {
        fn run<E: Stored>(x: &FlexTensor, scale: &[f32], gradient: FlexTensor, sums: &mut [f32]) -> FlexTensor {
            let ((plane, planes), x, mut gradient) = (sizes(x), x.to_contiguous(), owned(gradient));
            let inputs = x.storage::<E>().par_chunks(plane).zip(scale).zip(sums);
            let all = gradient.storage_mut::<E>().par_chunks_mut(plane).zip(inputs).with_min_len(planes);
            all.for_each_init(
                || (vec![], vec![]),
                |(wide, buffer), (gradient, ((x, factor), sum))| {
                    let x = E::widened(x, wide);
                    E::changed(gradient, buffer, |gradient| *sum = multiply_gradient(gradient, x, *factor));
                },
            );
            gradient
        }
        let mut sums = vec![0.0; scale.shape().num_elements()];
        let of_x = match x.shape().num_elements() {
            0 => gradient,
            _ => by_dtype!(x.dtype(), E => run::<E>(x, &to_f32(scale), gradient, &mut sums), else gradient),
        };
        [of_x, from_f32(sums, scale.shape(), scale.dtype())]
    }
}

mod composed {
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
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;

    use super::composed::{backward, forward};
    use super::flex;
    use crate::composed::tests::{DTYPES, assert_close, numbers};

    #[test]
    fn as_the_kernels() {
        for dtype in DTYPES {
            for [images, channels, height, width] in [[3, 5, 7, 11], [1, 2, 40, 41], [70, 3, 1, 1], [0, 3, 4, 4]] {
                let [x, gradient] = [1, 2].map(|seed| numbers([images, channels, height, width], seed, 1.0, dtype));
                let scale = numbers([images, channels, 1, 1], 3, 1.0, dtype);
                let y = flex::forward(x.clone(), &scale);
                assert_close(&forward::<Flex>(x.clone(), scale.clone()), &y, "forward");
                let kernel = flex::backward(&x, &scale, gradient.clone());
                let composed = backward::<Flex>(x, scale, gradient);
                for (composed, kernel) in composed.iter().zip(&kernel) {
                    assert_close(composed, kernel, "backward");
                }
            }
        }
    }
}
