//! Dropout whose mask is computed again in the backward pass.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;
#[cfg(feature = "cube")]
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::CubeDevice;
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all, run};

use crate::check::main_input;
use crate::error::Error;

/// Sets values to 0 with the given probability and divides the others by 1 minus that probability (Srivastava et al. 2014). Keeps
/// nothing.
///
/// The mask depends only on `seed` and the position of each value, so that the backward pass computes it again. The CPU device computes
/// it by Philox 4x32 with 7 rounds (Salmon et al. 2011), other devices by a simpler function. Give each call of a step a seed of its own.
/// `x` has any shape and is f32, f16 or bf16. Unlike [`Dropout`](burn::nn::Dropout) it also drops values on a device without autodiff: do
/// not call it when a model is evaluated.
///
/// # Errors
/// [`Error::InvalidSetting`] for a probability out of range, and [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn dropout<const D: usize>(x: Tensor<D>, probability: f64, seed: u64) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    if !(0.0..=1.0).contains(&probability) {
        let (value, expected) = (probability.to_string(), "a number from 0 to 1");
        return Err(Error::InvalidSetting { name: "the probability of dropout", value, expected });
    }
    Ok(Tensor::from_dispatch(run(Dropout { probability, seed }, vec![x.into_dispatch()]).remove(0)))
}

/// Dropout by a mask. The gradient of the input is computed from the gradient of the output like the output from the input.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dropout {
    /// The probability that a value is dropped, from 0 to 1.
    probability: f64,
    /// The seed of the mask.
    seed: u64,
}

impl Kernel for Dropout {
    fn cost(&self) -> &'static Cost {
        &DROPOUT
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [x] = all(inputs);
        vec![composed::dropped::<B>(x, *self)]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, _: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        (inputs[0].0.num_elements() > 0).then_some(|settings, inputs| {
            let [x] = all(inputs);
            vec![cube::dropped(x, *settings)]
        })
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let [x] = all(inputs);
        vec![flex::dropped(x, *self)]
    }
}

impl Operation for Dropout {
    const NAME: &'static str = "dropout";

    type Saved<B: KernelBackend> = ();

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, ()> {
        Computed { outputs: B::run(self, inputs), saved: Some(()) }
    }

    fn gradient<B: KernelBackend>(&self, (): (), gradient: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        B::run(self, vec![gradient]).into_iter().map(Some).collect()
    }
}

/// Values of a task.
const CHUNK: usize = 16 * 1024;

/// The cost in both directions.
static DROPOUT: Cost =
    Cost { in_place: &[(0, 0)], cpu_scratch: |call, cpu| call.chunks(CHUNK, 1, cpu), ..Cost::new("kiln::dropout") };

#[cfg(feature = "flex")]
mod flex {
    //! Dropout on the CPU, with random numbers that depend only on seed and position.
    //!
    //! Scratch memory: none in f32, otherwise `4 * CHUNK` bytes for each thread. About 25 integer operations for each value.

    use burn::backend::flex::FlexTensor;
    use rayon::prelude::*;

    use crate::dropout::CHUNK;
    use crate::dropout::Dropout;
    use kiln_operations::by_dtype;
    use kiln_operations::cpu::stored::{Stored, owned};
    use kiln_operations::simd;

    /// Number of generators that are computed together.
    const LANES: usize = 16;
    /// Number of values of `LANES` generators, four for each.
    const BLOCK: usize = 4 * LANES;

    /// Four random words of each of `LANES` generators with the counters `first`, `first + 1`, ..: Philox 4x32 with 7 rounds.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the compiler vectorises loops over lanes that are written so")]
    fn philox(first: u64, seed: u64) -> [[u32; LANES]; 4] {
        let mut words = [[0u32; LANES]; 4];
        for lane in 0..LANES {
            let counter = first + lane as u64;
            (words[0][lane], words[1][lane]) = (counter as u32, (counter >> 32) as u32);
        }
        let mut key = [seed as u32, (seed >> 32) as u32];
        for _ in 0..7 {
            for lane in 0..LANES {
                let left = u64::from(words[0][lane]) * 0xD251_1F53;
                let right = u64::from(words[2][lane]) * 0xCD9E_8D57;
                words[0][lane] = (right >> 32) as u32 ^ words[1][lane] ^ key[0];
                words[1][lane] = right as u32;
                words[2][lane] = (left >> 32) as u32 ^ words[3][lane] ^ key[1];
                words[3][lane] = left as u32;
            }
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        words
    }

    simd! { /// Drops values below `threshold` out of 2³². `first`: the position of the first value.
    fn drop_values(values: &mut [f32], first: u64, seed: u64, threshold: u64, scale: f32) {
        let blocks = first / BLOCK as u64;
        for (values, block) in values.chunks_mut(BLOCK).zip(blocks..) {
            let words = philox(block * LANES as u64, seed);
            let mut factors = [0.0f32; BLOCK];
            for (factor, word) in factors.iter_mut().zip(words.as_flattened()) {
                *factor = if u64::from(*word) < threshold { 0.0 } else { scale };
            }
            values.iter_mut().zip(&factors).for_each(|(value, factor)| *value *= factor);
        }
    }}

    /// Drops values of `x`, which is overwritten if no other handle to it exists.
    pub(super) fn dropped(x: FlexTensor, settings: Dropout) -> FlexTensor {
        fn run<E: Stored>(x: &mut FlexTensor, settings: Dropout) {
            let threshold = (settings.probability * (1u64 << 32) as f64).round() as u64;
            let scale = if settings.probability < 1.0 { (1.0 / (1.0 - settings.probability)) as f32 } else { 0.0 };
            let chunks = x.storage_mut::<E>().par_chunks_mut(CHUNK).enumerate();
            chunks.for_each_init(Vec::new, |wide, (index, values)| {
                let first = (index * CHUNK) as u64;
                E::changed(values, wide, |values| drop_values(values, first, settings.seed, threshold, scale));
            });
        }
        let mut x = owned(x);
        by_dtype!(x.dtype(), E => run::<E>(&mut x, settings), else ());
        x
    }
}

impl Dropout {
    /// The factor of the values that stay.
    fn factor(self) -> f32 {
        if self.probability < 1.0 { (1.0 / (1.0 - self.probability)) as f32 } else { 0.0 }
    }

    /// On other devices than the CPU: values whose random words are below this are dropped.
    fn threshold(self) -> u64 {
        (self.probability * 2f64.powi(32)).round() as u64
    }

    /// The low and the high half of the seed.
    fn words(self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }
}

#[cfg(feature = "cube")]
#[allow(missing_docs, reason = "the macro writes a module for the kernel")]
mod cube {
    //! Dropout in CubeCL, in one launch, with the random numbers of the composition.

    use burn::backend::cubecl::dtype_to_storage_type;
    use burn_cubecl::cubecl;
    use burn_cubecl::kernel::into_contiguous;
    use burn_cubecl::tensor::CubeTensor;
    use cubecl::calculate_cube_count_elemwise;
    use cubecl::prelude::*;
    use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
    use kiln_operations::cube::over;

    use crate::dropout::Dropout;
    use crate::mixed::mixed;

    #[cube(launch, address_type = "dynamic")]
    fn drop_values<X: Float, N: Size>(
        x: LinearView<'_, Vector<X, N>>,
        mut y: LinearViewMut<'_, Vector<X, N>>,
        length: usize,
        low: u32,
        high: u32,
        threshold: u32,
        factor: f32,
        #[define(X)] _dtype: ElemType,
    ) {
        let vector = N::value();
        if y.is_in_bounds(ABSOLUTE_POS) {
            let x = Vector::<f32, N>::cast_from(x.read(ABSOLUTE_POS));
            let first = ABSOLUTE_POS * vector;
            let of_row = mixed(mixed((first / length) as u32 + 1 + low) ^ high);
            let mut values = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for lane in 0..vector {
                let word = mixed(of_row ^ mixed((first % length + lane) as u32 + 1));
                values.insert(lane, select(word < threshold, 0.0f32, x.extract(lane) * factor));
            }
            y.write(ABSOLUTE_POS, Vector::cast_from(values));
        }
    }

    pub(super) fn dropped(x: CubeTensor, settings: Dropout) -> CubeTensor {
        let x = into_contiguous(x);
        let (shape, client) = (x.meta.shape().clone(), x.client.clone());
        let length = shape.last().copied().unwrap_or(1);
        // A vector is of one row.
        let vector = if length.is_multiple_of(4) { 4 } else { 1 };
        let units = shape.num_elements() / vector;
        let dim = CubeDim::new(&client, units);
        let (address, dtype) = (x.required_address_type(), dtype_to_storage_type(x.dtype));
        let ([low, high], (y, of_y)) = (settings.words(), over(&x, 0));
        drop_values::launch(
            &client,
            calculate_cube_count_elemwise(&client, units, dim),
            dim,
            address,
            vector,
            x.into_linear_view(),
            of_y,
            length,
            low,
            high,
            u32::try_from(settings.threshold()).unwrap_or(u32::MAX),
            settings.factor(),
            dtype,
        );
        y
    }
}

mod composed {
    //! Dropout in a backend's own operations. Its random numbers differ from those of the CPU device.
    //!
    //! Peak memory in addition to input and output: 8 bytes for each row and for each column. If burn does not fuse (its feature `fusion`),
    //! also two I64 tensors, a mask and one f32 tensor of the input's size.

    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Backend, TensorMetadata};
    use burn::tensor::{IntDType, Shape};

    use crate::composed::{Wide, bools, mixed, word};
    use crate::dropout::Dropout;

    pub(super) fn dropped<B: Backend>(x: FloatTensor<B>, settings: Dropout) -> FloatTensor<B> {
        let (shape, dtype, device) = (x.shape(), x.dtype(), x.device());
        let length = shape.last().copied().unwrap_or(1);
        if shape.num_elements() == 0 {
            return x;
        }
        let rows = shape.num_elements() / length;
        let numbers = |count: usize, shape| {
            B::int_reshape(B::int_arange(1..count as i64 + 1, &device, IntDType::I64), Shape::new(shape))
        };
        let [low, high] = settings.words().map(i64::from);
        let of_rows = mixed::<B>(word::<B>(B::int_add_scalar(numbers(rows, [rows, 1]), low.into())));
        let of_rows = mixed::<B>(B::bitwise_xor_scalar(of_rows, high.into()));
        let of_all = mixed::<B>(B::bitwise_xor(of_rows, mixed::<B>(numbers(length, [1, length]))));
        let threshold = settings.threshold() as i64;
        let dropped = B::int_lower_elem(of_all, threshold.into(), bools::<B>(&device));
        let y = Wide::<B>::of(&x).reshape([rows, length]).fill(dropped, 0.0) * settings.factor();
        B::float_reshape(y.narrow(dtype), shape)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::DType;

    use super::Dropout;
    use super::composed::dropped;
    use crate::composed::tests::assert_independent;
    use kiln_operations::cpu::stored::{from_f32, to_f32};

    #[test]
    fn the_rate_is_dropped_and_the_same_each_time() {
        let drop = |probability, seed| {
            let x = from_f32(vec![1.0; 64 * 256], [64, 256].into(), DType::F32);
            to_f32(&dropped::<Flex>(x, Dropout { probability, seed }))
        };
        for seed in [0, 1, u64::MAX] {
            let values = drop(0.25, seed);
            let kept: Vec<f32> = values.iter().map(|value| value * 0.75).collect();
            // The neighbour in the next column and the neighbour in the next row.
            assert_independent(&kept, 256, 0.75, &[1, 256]);
            assert_eq!(values, drop(0.25, seed));
            assert_ne!(values, drop(0.25, seed ^ 2));
        }
        assert!(drop(1.0, 3).iter().all(|value| *value == 0.0));
        assert!(drop(0.0, 3).iter().all(|value| *value == 1.0));
    }
}
