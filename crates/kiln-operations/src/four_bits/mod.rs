//! Weights of four bits: codes, two a byte, and a scale of eight bits for each 64 of them.
//!
//! The layout is that of bitsandbytes (Dettmers et al. 2023, arXiv 2305.14314): the values of a matrix `[outputs, inputs]` in row-major
//! order, in blocks of 64 across the ends of rows. The value of a code is its level times the scale of its block. The scale is the level of
//! the scale's code times the scale of its group of 256 blocks, plus an offset.

#[cfg(feature = "flex")]
mod cpu;
#[cfg(feature = "cube")]
mod cube;
mod layout;

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Int, Shape, Slice, Tensor};

#[cfg(feature = "cube")]
use burn_cubecl::CubeDevice;

use layout::SHIFTS;
pub use layout::{BLOCK, GROUP, LEVELS, OF_WORD, OFFSET, four_bit_lengths};

use crate::cost::Cost;
use crate::dispatch::run;
#[cfg(feature = "cube")]
use crate::operation::CubeKernel;
use crate::operation::{Computed, Kernel, KernelBackend, Operation, all};

/// The name under which the codes of a weight are attached to it. They are a module with the parameters of [`FourBitWeight`]. The weight
/// itself is a view of one number, which has the shape of the weight and takes no memory.
pub const FOUR_BITS: &str = "four_bits";

/// A weight in codes of four bits.
#[derive(Clone, Debug)]
pub struct FourBitWeight {
    /// The levels of codes (16) and of the codes of scales (256), the offset of scales, and the scale of each group, in f32.
    pub levels: Tensor<1>,
    /// Codes in words of 32 bits, as many as fill all blocks. Of each byte, the lowest byte of a word first, the first code is in the high bits.
    pub codes: Tensor<1, Int>,
    /// A code of eight bits for the scale of each block, in words of 32 bits, the first in the lowest bits.
    pub scales: Tensor<1, Int>,
}

impl FourBitWeight {
    /// The values `[inputs, outputs]` in a float dtype. They lie in memory as the rows of the transposed matrix. They have no gradient.
    pub fn widened(self, [inputs, outputs]: [usize; 2], dtype: DType) -> Tensor<2> {
        let widened = Widened { outputs, inputs, dtype };
        let tensors = vec![self.levels.into_dispatch(), self.codes.into_dispatch(), self.scales.into_dispatch()];
        Tensor::<2>::from_dispatch(run(widened, tensors).remove(0)).transpose()
    }
}

/// The values `[inputs, outputs]` of levels, codes and scales, as [`FourBitWeight::widened`], for the inside of an operation.
pub fn widened_four_bits<B: KernelBackend>(
    tensors: [FloatTensor<B>; 3],
    [inputs, outputs]: [usize; 2],
    dtype: DType,
) -> FloatTensor<B> {
    let [values] = all(B::run(&Widened { outputs, inputs, dtype }, tensors.into()));
    B::float_transpose(values)
}

static WIDENED: Cost = Cost { gpu_scratch: |_, _| 0, by_sample: true, ..Cost::new("kiln::widened_four_bits") };

/// The matrix `[outputs, inputs]` of levels, codes and scales.
#[derive(Clone, Copy, Debug)]
struct Widened {
    outputs: usize,
    inputs: usize,
    dtype: DType,
}

impl Operation for Widened {
    const NAME: &'static str = "weight of four bits";

    type Saved<B: KernelBackend> = ();

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, ()> {
        Computed { outputs: B::run(self, inputs), saved: Some(()) }
    }

    fn gradient<B: KernelBackend>(&self, (): (), _: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        vec![]
    }
}

impl Kernel for Widened {
    fn cost(&self) -> &'static Cost {
        &WIDENED
    }

    fn outputs(&self, _: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        vec![(Shape::new([self.outputs, self.inputs]), self.dtype)]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [levels, codes, scales] = all(inputs);
        let values = self.outputs * self.inputs;
        let blocks = values.div_ceil(BLOCK);
        let part = |from: usize, to: usize| B::float_slice(levels.clone(), &[Slice::from(from..to)]);
        let reshaped = |tensor, shape: [usize; 2]| B::float_reshape(tensor, Shape::new(shape));

        let of_scales = B::float_select(part(LEVELS, OFFSET), 0, digits::<B>(B::int(scales), &[0, 8, 16, 24], 255));
        let of_scales = B::float_slice(of_scales, &[Slice::from(0..blocks)]);
        let groups = blocks.div_ceil(GROUP);
        let of_groups = reshaped(part(OFFSET + 1, OFFSET + 1 + groups), [groups, 1]);
        let of_groups = B::float_expand(of_groups, Shape::new([groups, GROUP]));
        let of_groups = B::float_reshape(of_groups, Shape::new([groups * GROUP]));
        let of_groups = B::float_slice(of_groups, &[Slice::from(0..blocks)]);
        let scales = B::float_add(B::float_mul(of_scales, of_groups), part(OFFSET, OFFSET + 1));

        let of_codes = B::float_select(part(0, LEVELS), 0, digits::<B>(B::int(codes), &SHIFTS, 15));
        let made = B::float_mul(reshaped(of_codes, [blocks, BLOCK]), reshaped(scales, [blocks, 1]));
        let made = B::float_reshape(made, Shape::new([blocks * BLOCK]));
        let made = B::float_slice(made, &[Slice::from(0..values)]);
        vec![B::float_cast(reshaped(made, [self.outputs, self.inputs]), self.dtype.into())]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, _: &CubeDevice, _: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        (self.outputs * self.inputs > 0)
            .then_some(|own, inputs| vec![cube::widened(all(inputs), [own.outputs, own.inputs], own.dtype)])
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<burn::backend::flex::FlexTensor>) -> Vec<burn::backend::flex::FlexTensor> {
        vec![cpu::widened(all(inputs), [self.outputs, self.inputs], self.dtype)]
    }
}

/// The numbers in words, which begin at bits `shifts`.
fn digits<B: KernelBackend>(words: IntTensor<B>, shifts: &[usize], mask: i32) -> IntTensor<B> {
    let count = words.shape()[0];
    let digit = |shift: &usize| {
        let digit =
            B::bitwise_and_scalar(B::bitwise_right_shift_scalar(words.clone(), (*shift as i32).into()), mask.into());
        B::int_reshape(digit, Shape::new([count, 1]))
    };
    let digits = B::int_cat(shifts.iter().map(digit).collect(), 1);
    B::int_reshape(digits, Shape::new([count * shifts.len()]))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn burns_operations_and_the_kernel_compute_the_same_values() {
        let device = Device::flex();
        for shape in [[1, 1], [1, 64], [5, 13], [3, 129], [70, 260]] {
            let [levels, codes, scales] = four_bit_lengths(shape[0] * shape[1]);
            let numbers = |count: usize| (0..count as i64).map(|at| (at * 2_654_435_761 % 4_294_967_291) as u32 as i32);
            let levels: Vec<f32> = numbers(levels).map(|number| number as f32 / i32::MAX as f32).collect();
            let levels = Tensor::<1>::from_data(levels.as_slice(), (&device, DType::F32));
            let words = |count| {
                let words: Vec<i32> = numbers(count).collect();
                Tensor::<1, Int>::from_data(words.as_slice(), (&device, DType::I32)).into_dispatch()
            };
            let weight = [levels.into_dispatch(), words(codes), words(scales)];
            let tensors = || -> Vec<_> {
                let held = |tensor: burn::backend::DispatchTensor| match tensor.kind {
                    burn::backend::DispatchTensorKind::Flex(tensor) => match tensor {
                        burn::backend::BackendTensor::Float(tensor) | burn::backend::BackendTensor::Int(tensor) => {
                            tensor
                        }
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                };
                weight.clone().into_iter().map(held).collect()
            };
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let kernel = Widened { outputs: shape[0], inputs: shape[1], dtype };
                let [own] = all(kernel.flex(tensors()));
                let [composed] = all(kernel.composed::<Flex>(tensors()));
                assert_eq!((own.shape(), own.dtype()), (Shape::new(shape), dtype));
                let values = |tensor| crate::cpu::stored::to_f32(tensor);
                assert_eq!(values(&own), values(&composed), "{shape:?} {dtype:?}");
            }
        }
    }
}
