//! Softmax over the last dimension.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;
use kiln_operations::{Call, Computed, Cost, Cpu, Kernel, KernelBackend, Operation, all, run};

use crate::check::main_input;
use crate::error::Error;

/// Softmax: exp(x) / sum of exp(x) over the last dimension, computed from the difference to the largest value. Keeps its output.
///
/// `x` is `[.., classes]` in f32, f16 or bf16. Computes in f32. A row whose largest value is not finite gives NaN, as in torch.
///
/// # Errors
/// [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn softmax<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    Ok(Tensor::from_dispatch(run(Softmax::Forward, vec![x.into_dispatch()]).remove(0)))
}

/// Softmax, and its gradient from output and gradient of the output.
#[derive(Clone, Copy, Debug)]
enum Softmax {
    Forward,
    Backward,
}

impl Kernel for Softmax {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward => &FORWARD,
            Self::Backward => &BACKWARD,
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match self {
            Self::Forward => vec![composed::forward::<B>(&inputs[0])],
            Self::Backward => {
                let [y, gradient] = all(inputs);
                vec![composed::backward::<B>(&y, &gradient)]
            }
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        match self {
            Self::Forward => vec![flex::forward(&inputs[0])],
            Self::Backward => {
                let [y, gradient] = all(inputs);
                vec![flex::backward(&y, gradient)]
            }
        }
    }
}

impl Operation for Softmax {
    const NAME: &'static str = "softmax";

    /// The output.
    type Saved<B: KernelBackend> = FloatTensor<B>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, FloatTensor<B>> {
        let outputs = B::run(&Self::Forward, inputs);
        Computed { saved: Some(outputs[0].clone()), outputs }
    }

    fn gradient<B: KernelBackend>(
        &self,
        y: FloatTensor<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        B::run(&Self::Backward, vec![y, gradient]).into_iter().map(Some).collect()
    }
}

/// Values of a task, rounded up to whole rows.
const CHUNK: usize = 16 * 1024;

static FORWARD: Cost = Cost {
    cpu_scratch: scratch,
    gpu_scratch: |call, _| call.wide(0, 2),
    by_sample: true,
    ..Cost::new("kiln::softmax")
};

/// Inputs: output, gradient.
static BACKWARD: Cost = Cost {
    in_place: &[(1, 0)],
    cpu_scratch: scratch,
    gpu_scratch: |call, _| call.wide(0, 2),
    by_sample: true,
    ..Cost::new("kiln::softmax_backward")
};

/// Number of values of a task, which handles whole rows.
fn task(classes: usize) -> usize {
    (CHUNK.div_ceil(classes.max(1)) * classes).max(1)
}

/// Two buffers of a task.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    call.chunks(task(call.dim_from_end(0, 0) as usize), 2, cpu)
}

#[cfg(feature = "flex")]
mod flex {
    //! Softmax on the CPU, row by row.
    //!
    //! Scratch memory: none in f32, otherwise two buffers for each thread, of the values of a task: whole rows, `CHUNK` values or more. About 20 operations for each value
    //! forward, 4 backward.

    use burn::backend::TensorMetadata;
    use burn::backend::flex::FlexTensor;
    use rayon::prelude::*;

    use crate::softmax::task;
    use kiln_operations::by_dtype;
    use kiln_operations::cpu::buffers::{run_with_buffers, widened_buffers};
    use kiln_operations::cpu::math::exp;
    use kiln_operations::cpu::stored::{Stored, owned, rows, tensor};
    use kiln_operations::simd;
    use kiln_operations::simd::{LANES, lanes_sum, maximum, pair_sums};

    simd! { fn softmax_rows(y: &mut [f32], x: &[f32], classes: usize) {
        for (y, x) in y.chunks_exact_mut(classes).zip(x.chunks_exact(classes)) {
            let largest = maximum(x);
            let mut lanes = [0.0f32; LANES];
            let mut rest = 0.0;
            let whole = classes - classes % LANES;
            for (y, x) in y.chunks_exact_mut(LANES).zip(x.chunks_exact(LANES)) {
                for lane in 0..LANES {
                    y[lane] = exp(x[lane] - largest);
                    lanes[lane] += y[lane];
                }
            }
            for (y, x) in y[whole..].iter_mut().zip(&x[whole..]) {
                *y = exp(x - largest);
                rest += *y;
            }
            let factor = 1.0 / (lanes_sum(lanes) + rest);
            y.iter_mut().for_each(|y| *y *= factor);
        }
    }}

    simd! { fn gradient_rows(gradient: &mut [f32], y: &[f32], classes: usize) {
        for (gradient, y) in gradient.chunks_exact_mut(classes).zip(y.chunks_exact(classes)) {
            let [product, _] = pair_sums(gradient, y, |g, y| [g * y, 0.0]);
            gradient.iter_mut().zip(y).for_each(|(g, y)| *g = y * (*g - product));
        }
    }}

    pub(super) fn forward(x: &FlexTensor) -> FlexTensor {
        fn run<E: Stored>(x: &FlexTensor) -> FlexTensor {
            let x = x.to_contiguous();
            let (count, classes) = rows(&x);
            let mut y = vec![E::zeroed(); count * classes];
            let task = task(classes);
            let (tasks, values) = (y.len().div_ceil(task), task.min(y.len()));
            let chunks = y.par_chunks_mut(task).zip(x.storage::<E>().par_chunks(task));
            run_with_buffers(
                chunks,
                tasks,
                || widened_buffers::<E, 2>(values),
                |[wide, kept], (y, x)| {
                    let x = E::widened(x, wide);
                    E::written(y, kept, |y| softmax_rows(y, x, classes));
                },
            );
            tensor(y, x.shape())
        }
        by_dtype!(x.dtype(), E => run::<E>(x), else x.clone())
    }

    /// The gradient of the input. It is written over `gradient` if no other handle to it exists.
    pub(super) fn backward(y: &FlexTensor, gradient: FlexTensor) -> FlexTensor {
        fn run<E: Stored>(y: &FlexTensor, gradient: FlexTensor) -> FlexTensor {
            let ((count, classes), mut gradient) = (rows(y), owned(gradient));
            let task = task(classes);
            let (tasks, values) = ((count * classes).div_ceil(task), task.min(count * classes));
            let chunks = gradient.storage_mut::<E>().par_chunks_mut(task).zip(y.storage::<E>().par_chunks(task));
            run_with_buffers(
                chunks,
                tasks,
                || widened_buffers::<E, 2>(values),
                |[wide, kept], (gradient, y)| {
                    let y = E::widened(y, wide);
                    E::changed(gradient, kept, |gradient| gradient_rows(gradient, y, classes));
                },
            );
            gradient
        }
        by_dtype!(y.dtype(), E => run::<E>(y, gradient), else gradient)
    }
}

mod composed {
    //! Softmax over the last dimension in a backend's own operations.
    //!
    //! Peak memory in addition to inputs and output: two f32 tensors of the input's size in each direction, and two values for each row. If
    //! burn fuses (its feature `fusion`), at most one such tensor exists.

    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Backend, TensorMetadata};

    use crate::composed::Wide;

    pub(super) fn forward<B: Backend>(x: &FloatTensor<B>) -> FloatTensor<B> {
        let shape = x.shape();
        if shape.num_elements() == 0 {
            return x.clone();
        }
        let last = shape.num_dims() - 1;
        let exponentials = (Wide::<B>::of(x) - Wide::<B>::of(x).largest(last)).exp();
        let sums = exponentials.clone().sum(&[last]);
        (exponentials / sums).narrow(x.dtype())
    }

    /// The gradient of the input. `y` is the output.
    pub(super) fn backward<B: Backend>(y: &FloatTensor<B>, gradient: &FloatTensor<B>) -> FloatTensor<B> {
        let shape = y.shape();
        if shape.num_elements() == 0 {
            return gradient.clone();
        }
        let products = (Wide::<B>::of(y) * Wide::of(gradient)).sum(&[shape.num_dims() - 1]);
        (Wide::<B>::of(y) * (Wide::of(gradient) - products)).narrow(y.dtype())
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
            for shape in [[0, 3, 2], [1, 1, 1], [3, 5, 37]] {
                let [x, gradient] = [1, 2].map(|seed| numbers(shape, seed, 4.0, dtype));
                let y = flex::forward(&x);
                assert_close(&forward::<Flex>(&x), &y, &format!("{dtype:?}"));
                let expected = flex::backward(&y, gradient.clone());
                assert_close(&backward::<Flex>(&y, &gradient), &expected, &format!("{dtype:?}"));
            }
        }
    }
}
