//! Rotary position embedding.

mod options;

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Shape, Tensor};
use kiln_operations::{Call, Computed, Cost, Cpu, Kernel, KernelBackend, Operation, all, run};

use crate::check::main_input;
use crate::error::Error;

use options::refused;
pub use options::{RotaryOptions, RotaryPairs, RotaryScaling};

/// Rotary position embedding (Su et al. 2021). It rotates each pair of values of a row by an angle that is proportional to the row's
/// position.
///
/// `x` has queries or keys `[.., time, depth]` in f32, f16 or bf16, with an even depth. The result has the same shape and dtype. Angles
/// are computed in f64 and rotations in f32. Keeps nothing for the backward pass, which rotates the gradient back. Both passes overwrite
/// their argument if no other handle to it exists.
///
/// # Errors
/// [`Error::InvalidSetting`] for an odd depth, fewer than 2 dimensions and a theta that is not positive, [`Error::UnsupportedDevice`]
/// and [`Error::UnsupportedDType`].
pub fn rotary<const D: usize>(x: Tensor<D>, options: RotaryOptions) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    if D < 2 {
        return Err(refused("the number of dimensions of the input", D.to_string(), "at least 2, [.., time, depth]"));
    }
    options.check(x.dims()[D - 1])?;
    let rotary = Rotary { options, direction: Direction::Forward, rows: Rows::OfTime };
    Ok(Tensor::from_dispatch(run(rotary, vec![x.into_dispatch()]).remove(0)))
}

/// The direction in which rows are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// By the angle of the position, for the output.
    Forward,
    /// Backward, for gradients.
    Back,
}

/// The heads `[batch, time, heads, depth]`, rotated. The tensor is overwritten if no other handle to it exists.
pub(crate) fn rotated_heads<B: KernelBackend>(
    x: FloatTensor<B>,
    options: RotaryOptions,
    direction: Direction,
) -> FloatTensor<B> {
    let [x] = all(B::run(&Rotary { options, direction, rows: Rows::OfHeads }, vec![x]));
    x
}

/// What the rows of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// Positions: `[.., time, depth]`.
    OfTime,
    /// Heads of each position: `[batch, time, heads, depth]`.
    OfHeads,
}

impl Rows {
    /// Positions, rows of each position, and depth.
    fn sizes(self, shape: &Shape) -> [usize; 3] {
        let last = shape.num_dims() - 1;
        match self {
            Self::OfTime => [shape[last - 1], 1, shape[last]],
            Self::OfHeads => [shape[last - 2], shape[last - 1], shape[last]],
        }
    }
}

/// The rotation of rows.
#[derive(Clone, Copy, Debug)]
struct Rotary {
    options: RotaryOptions,
    direction: Direction,
    rows: Rows,
}

impl Kernel for Rotary {
    fn cost(&self) -> &'static Cost {
        match self.direction {
            Direction::Forward => &FORWARD,
            Direction::Back => &BACKWARD,
        }
    }

    /// Whether rows are heads of a position.
    fn scalars(&self) -> Vec<i64> {
        vec![(self.rows == Rows::OfHeads).into()]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [x] = all(inputs);
        vec![composed::rotated::<B>(x, *self)]
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let [x] = all(inputs);
        vec![flex::rotated(x, *self)]
    }
}

impl Operation for Rotary {
    const NAME: &'static str = "rotary";

    type Saved<B: KernelBackend> = ();

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, ()> {
        Computed { outputs: B::run(self, inputs), saved: Some(()) }
    }

    fn gradient<B: KernelBackend>(&self, (): (), gradient: FloatTensor<B>, _: &[bool]) -> Vec<Option<FloatTensor<B>>> {
        let back = Self { direction: Direction::Back, ..*self };
        B::run(&back, vec![gradient]).into_iter().map(Some).collect()
    }
}

static FORWARD: Cost = Cost {
    in_place: &[(0, 0)],
    cpu_scratch: scratch,
    gpu_scratch: |call, _| call.wide(0, 2),
    by_sample: true,
    ..Cost::new("kiln::rotary")
};

static BACKWARD: Cost = Cost { id: "kiln::rotary_backward", ..FORWARD };

/// Cosines and sines of each position, and a row for each thread.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let (time, depth) = (call.dim_from_end(0, if call.scalar(0) == 1 { 2 } else { 1 }), call.dim_from_end(0, 0));
    4 * (time * depth) + call.widened(call.elements(0) / depth.max(1), depth, cpu)
}

#[cfg(feature = "flex")]
mod flex {
    //! Rotary position embedding on the CPU, in place.
    //!
    //! Scratch memory: 4 time depth bytes for the cosines and sines, and a row in f32 for each thread with 16-bit inputs. Multiply-adds: 2 for
    //! each value, and time depth / 2 sines and cosines in f64.

    use burn::backend::TensorMetadata;
    use burn::backend::flex::FlexTensor;
    use rayon::prelude::*;

    use crate::rotary::{Direction, Rotary, RotaryPairs};
    use kiln_operations::by_dtype;
    use kiln_operations::cpu::stored::Stored;
    use kiln_operations::simd;

    /// Rows of a task.
    const ROWS: usize = 64;

    simd! { fn rotate_adjacent(row: &mut [f32], cosines: &[f32], sines: &[f32]) {
        for ((pair, &cosine), &sine) in row.chunks_exact_mut(2).zip(cosines).zip(sines) {
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * cosine - b * sine;
            pair[1] = a * sine + b * cosine;
        }
    }}

    simd! { fn rotate_halves(row: &mut [f32], cosines: &[f32], sines: &[f32]) {
        let (first, second) = row.split_at_mut(cosines.len());
        for (((a, b), &cosine), &sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
        }
    }}

    /// Rotates rows. `x` is overwritten if no other handle to it exists.
    pub(super) fn rotated(x: FlexTensor, rotary: Rotary) -> FlexTensor {
        fn run<E: Stored>(x: FlexTensor, Rotary { options, direction, rows }: Rotary) -> FlexTensor {
            let shape = x.shape();
            let [time, of_position, depth] = rows.sizes(&shape);
            let covers = x.is_contiguous() && x.bytes().len() == shape.num_elements() * size_of::<E>();
            let mut x = if covers { x } else { x.to_contiguous() };
            if shape.num_elements() == 0 {
                return x;
            }
            // Cosines, then sines, of each position.
            let mut table = vec![0.0f32; time * depth];
            table.par_chunks_mut(depth).enumerate().for_each(|(row, table)| {
                let (cosines, sines) = table.split_at_mut(depth / 2);
                for (pair, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
                    let angle = options.angle(row, pair, depth);
                    let angle = if direction == Direction::Back { -angle } else { angle };
                    (*cosine, *sine) = (angle.cos() as f32, angle.sin() as f32);
                }
            });
            x.storage_mut::<E>().par_chunks_mut(ROWS * depth).enumerate().for_each_init(
                Vec::new,
                |wide, (task, rows)| {
                    for (row, values) in rows.chunks_exact_mut(depth).enumerate() {
                        let position = (task * ROWS + row) / of_position % time;
                        let (cosines, sines) = table[position * depth..][..depth].split_at(depth / 2);
                        E::changed(values, wide, |values| match options.pairs {
                            RotaryPairs::Adjacent => rotate_adjacent(values, cosines, sines),
                            RotaryPairs::Halves => rotate_halves(values, cosines, sines),
                        });
                    }
                },
            );
            x
        }
        by_dtype!(x.dtype(), E => run::<E>(x, rotary), else x)
    }
}

mod composed {
    //! Rotary position embedding in a backend's own operations.
    //!
    //! Peak memory in addition to input and output: cosines and sines, `time depth` values of f32, which are computed on the host and copied
    //! to the device in each call; both halves of the result in its dtype. If burn does not fuse (its feature `fusion`), also two f32 tensors
    //! of half the input's size.

    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Backend, TensorMetadata};
    use burn::tensor::{Shape, TensorData};

    use crate::composed::{Wide, cat, slice};
    use crate::rotary::{Direction, Rotary, RotaryPairs};

    pub(super) fn rotated<B: Backend>(
        x: FloatTensor<B>,
        Rotary { options, direction, rows }: Rotary,
    ) -> FloatTensor<B> {
        let (shape, dtype, device) = (x.shape(), x.dtype(), x.device());
        let [time, of_position, depth] = rows.sizes(&shape);
        if shape.num_elements() == 0 {
            return x;
        }
        let (samples, pairs) = (shape.num_elements() / (time * of_position * depth), depth / 2);
        // The dimension along which the two values of a pair lie.
        let (dim, split, angles) = match options.pairs {
            RotaryPairs::Adjacent => (4, [samples, time, of_position, pairs, 2], [1, time, 1, pairs, 1]),
            RotaryPairs::Halves => (3, [samples, time, of_position, 2, pairs], [1, time, 1, 1, pairs]),
        };
        let table = |function: fn(f64) -> f64| {
            let values =
                (0..time * pairs).map(|index| function(options.angle(index / pairs, index % pairs, depth)) as f32);
            let data = TensorData::new(values.collect::<Vec<f32>>(), angles);
            Wide::<B>::of(&B::float_from_data(data, &device))
        };
        let (cosines, sines) = (table(f64::cos), table(f64::sin));
        let sines = if direction == Direction::Back { -sines } else { sines };
        let x = B::float_reshape(x, Shape::new(split));
        let [first, second] = [0, 1].map(|part| {
            let mut ranges = split.map(|length| 0..length);
            ranges[dim] = part..part + 1;
            slice::<B>(&x, &ranges)
        });
        let wide = |part| Wide::<B>::of(part);
        let left = wide(&first) * cosines.clone() - wide(&second) * sines.clone();
        let right = wide(&first) * sines + wide(&second) * cosines;
        B::float_reshape(cat::<B>(vec![left.narrow(dtype), right.narrow(dtype)], dim), shape)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;

    use super::composed::rotated;
    use super::flex;
    use super::{Direction, Rotary, RotaryOptions, RotaryPairs, RotaryScaling, Rows};
    use crate::composed::tests::{DTYPES, assert_close, numbers};

    #[test]
    fn as_the_kernels() {
        let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 32 };
        for (dtype, pairs) in DTYPES
            .into_iter()
            .flat_map(|dtype| [RotaryPairs::Adjacent, RotaryPairs::Halves].map(|pairs| (dtype, pairs)))
        {
            for (shape, rows) in [[0, 2, 3, 4], [1, 1, 1, 2], [2, 3, 7, 10]]
                .into_iter()
                .flat_map(|shape| [Rows::OfTime, Rows::OfHeads].map(|rows| (shape, rows)))
            {
                for direction in [Direction::Forward, Direction::Back] {
                    let options = RotaryOptions::new().with_first_position(5).with_pairs(pairs).with_scaling(scaling);
                    let (x, rotary) = (numbers(shape, 1, 2.0, dtype), Rotary { options, direction, rows });
                    let kernel = flex::rotated(x.clone(), rotary);
                    let what = format!("{dtype:?} {shape:?} {rotary:?}");
                    assert_close(&rotated::<Flex>(x, rotary), &kernel, &what);
                }
            }
        }
    }

    #[test]
    fn frequencies_of_llama_3_are_those_of_transformers() {
        // transformers' `_compute_llama3_parameters` for theta 500, depth 8, factor 8, low 1, high 4, context 32 (5.23.0).
        let expected = [1.0, 0.031_185_457_482_933_998, 0.005_590_170_156_210_661, 0.001_182_176_987_640_559_7];
        let options = RotaryOptions::new().with_theta(500.0).with_scaling(RotaryScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            context: 32,
        });
        for (pair, expected) in expected.into_iter().enumerate() {
            let got = options.angle(1, pair, 8);
            assert!((got - expected).abs() < 1e-6 * expected, "{pair}: {got}, expected {expected}");
        }
    }
}
