//! SwiGLU.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, Tensor};
use kiln_operations::{Call, Computed, Cost, Cpu, Kernel, KernelBackend, Operation, all, run};

use crate::check::{main_input, same_dtype, same_size};
use crate::error::Error;

/// SwiGLU: silu(gate) * up, the product in a gated feed-forward layer (Shazeer 2020). Keeps both inputs.
///
/// `gate` and `up` have the same shape, which may be any, and are f32, f16 or bf16. Computes in f32.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`] and [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the gate", &gate)?;
    same_dtype(("the gate", gate.dtype()), ("the other input", up.dtype()))?;
    for (gate, up) in gate.dims().into_iter().zip(up.dims()) {
        same_size(("a dimension of the gate", gate), ("that of the other input", up))?;
    }
    Ok(Tensor::from_dispatch(run(Swiglu::Forward, vec![gate.into_dispatch(), up.into_dispatch()]).remove(0)))
}

/// SwiGLU of gate and up, and the gradients of both from gate, up and the gradient of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Swiglu {
    Forward,
    Backward,
}

impl Kernel for Swiglu {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward => &FORWARD,
            Self::Backward => &BACKWARD,
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward => vec![inputs[0].clone()],
            Self::Backward => inputs[..2].to_vec(),
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match self {
            Self::Forward => vec![composed::forward::<B>(&inputs[0], &inputs[1])],
            Self::Backward => {
                let [gate, up, gradient] = all(inputs);
                composed::backward::<B>(&gate, &up, &gradient).into()
            }
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        match self {
            Self::Forward => vec![flex::forward(&inputs[0], &inputs[1])],
            Self::Backward => {
                let [gate, up, gradient] = all(inputs);
                flex::backward(gate, &up, gradient).into()
            }
        }
    }
}

impl Operation for Swiglu {
    const NAME: &'static str = "swiglu";

    /// The inputs.
    type Saved<B: KernelBackend> = Vec<FloatTensor<B>>;

    fn forward<B: KernelBackend>(
        &self,
        inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, Vec<FloatTensor<B>>> {
        let saved = wanted.contains(&true).then(|| inputs.clone());
        Computed { outputs: B::run(&Self::Forward, inputs), saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        mut saved: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        saved.push(gradient);
        B::run(&Self::Backward, saved).into_iter().map(Some).collect()
    }
}

/// Values of a task.
const CHUNK: usize = 8 * 1024;

static FORWARD: Cost =
    Cost { cpu_scratch: scratch, gpu_scratch: |call| call.wide(0, 3), by_sample: true, ..Cost::new("kiln::swiglu") };

/// Inputs: gate, up, gradient.
static BACKWARD: Cost = Cost {
    in_place: &[(0, 0), (2, 1)],
    cpu_scratch: scratch,
    gpu_scratch: |call| call.wide(0, 5),
    by_sample: true,
    ..Cost::new("kiln::swiglu_backward")
};

/// Three buffers for each thread. They are counted as two tasks long, which is an upper bound.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    call.chunks(2 * CHUNK, 3, cpu)
}

#[cfg(feature = "flex")]
mod flex {
    //! SwiGLU on the CPU: one pass in each direction, over chunks that stay in the cache.
    //!
    //! Scratch memory: none in f32, otherwise `3 * 4 * CHUNK` bytes for each thread. About 20 operations for each value forward, 30 backward.

    use burn::backend::TensorMetadata;
    use burn::backend::flex::FlexTensor;
    use rayon::prelude::*;

    use crate::swiglu::CHUNK;
    use kiln_operations::by_dtype;
    use kiln_operations::cpu::math::sigmoid;
    use kiln_operations::cpu::stored::{Stored, owned, tensor};
    use kiln_operations::simd;

    simd! { fn product(y: &mut [f32], gate: &[f32], up: &[f32]) {
        for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * sigmoid(gate) * up;
        }
    }}

    simd! { fn gradients(gate: &mut [f32], up: &[f32], gradient: &mut [f32]) {
        for ((gate, &up), gradient) in gate.iter_mut().zip(up).zip(gradient) {
            let (x, g, s) = (*gate, *gradient, sigmoid(*gate));
            *gate = g * up * (x * (1.0 - s)).mul_add(s, s);
            *gradient = g * x * s;
        }
    }}

    pub(super) fn forward(gate: &FlexTensor, up: &FlexTensor) -> FlexTensor {
        fn run<E: Stored>(gate: &FlexTensor, up: &FlexTensor) -> FlexTensor {
            let (gate, up) = (gate.to_contiguous(), up.to_contiguous());
            let mut y = vec![E::zeroed(); gate.shape().num_elements()];
            let inputs = gate.storage::<E>().par_chunks(CHUNK).zip(up.storage::<E>().par_chunks(CHUNK));
            y.par_chunks_mut(CHUNK).zip(inputs).for_each_init(
                || (vec![], vec![], vec![]),
                |(wide_gate, wide_up, kept), (y, (gate, up))| {
                    let (gate, up) = (E::widened(gate, wide_gate), E::widened(up, wide_up));
                    E::written(y, kept, |y| product(y, gate, up));
                },
            );
            tensor(y, gate.shape())
        }
        by_dtype!(gate.dtype(), E => run::<E>(gate, up), else gate.clone())
    }

    /// The gradients of both inputs. They are written over `gate` and `gradient` if no other handle to these exists.
    pub(super) fn backward(gate: FlexTensor, up: &FlexTensor, gradient: FlexTensor) -> [FlexTensor; 2] {
        fn run<E: Stored>(mut gate: FlexTensor, up: &FlexTensor, mut gradient: FlexTensor) -> [FlexTensor; 2] {
            let outputs = gate.storage_mut::<E>().par_chunks_mut(CHUNK);
            let outputs = outputs.zip(gradient.storage_mut::<E>().par_chunks_mut(CHUNK));
            outputs.zip(up.storage::<E>().par_chunks(CHUNK)).for_each_init(
                || (vec![], vec![], vec![]),
                |(wide, wide_gate, kept), ((gate, gradient), up)| {
                    let up = E::widened(up, wide);
                    E::changed(gate, wide_gate, |gate| {
                        E::changed(gradient, kept, |gradient| gradients(gate, up, gradient));
                    });
                },
            );
            [gate, gradient]
        }
        let (gate, up, gradient) = (owned(gate), up.to_contiguous(), owned(gradient));
        by_dtype!(gate.dtype(), E => run::<E>(gate, &up, gradient), else [gate, gradient])
    }
}

mod composed {
    //! SwiGLU in a backend's own operations.
    //!
    //! Peak memory in addition to inputs and outputs: if burn fuses (its feature `fusion`), each direction is one kernel and takes none.
    //! Otherwise it is at most two f32 tensors of an input's size forward, and four backward.

    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Backend, TensorMetadata};

    use crate::composed::Wide;

    pub(super) fn forward<B: Backend>(gate: &FloatTensor<B>, up: &FloatTensor<B>) -> FloatTensor<B> {
        let x = Wide::<B>::of(gate);
        (x.clone().sigmoid() * x * Wide::of(up)).narrow(gate.dtype())
    }

    /// The gradients of gate and up.
    pub(super) fn backward<B: Backend>(
        gate: &FloatTensor<B>,
        up: &FloatTensor<B>,
        gradient: &FloatTensor<B>,
    ) -> [FloatTensor<B>; 2] {
        let (x, gradient) = (Wide::<B>::of(gate), Wide::<B>::of(gradient));
        let sigmoid = x.clone().sigmoid();
        let of_up = sigmoid.clone() * x.clone() * gradient.clone();
        let slope = ((-sigmoid.clone() + 1.0) * x + 1.0) * sigmoid;
        let of_gate = slope * gradient * Wide::of(up);
        [of_gate.narrow(gate.dtype()), of_up.narrow(up.dtype())]
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
            for shape in [[0, 3], [1, 1], [7, 13]] {
                let [gate, up, gradient] = [1, 2, 3].map(|seed| numbers(shape, seed, 2.0, dtype));
                let y = flex::forward(&gate, &up);
                assert_close(&forward::<Flex>(&gate, &up), &y, &format!("{dtype:?}"));
                let expected = flex::backward(gate.clone(), &up, gradient.clone());
                for (composed, kernel) in backward::<Flex>(&gate, &up, &gradient).iter().zip(&expected) {
                    assert_close(composed, kernel, &format!("{dtype:?}"));
                }
            }
        }
    }
}
