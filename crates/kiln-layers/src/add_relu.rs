//! Residual addition and the ReLU after it.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;
use kiln_operations::{Call, Computed, Cost, Cpu, Kernel, KernelBackend, Operation, all, run};

use crate::check::{main_input, same_dtype, same_size};
use crate::error::Error;

/// max(a + b, 0) in one operation: the end of a residual block. The sum itself is never in memory.
///
/// `a` and `b` have one shape and one dtype: f32, f16 or bf16. Keeps only the output, which the next layer usually keeps as well. Both
/// gradients are the same tensor, in the memory of the output's gradient.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`], [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn add_relu<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the first summand", &a)?;
    same_dtype(("the first summand", a.dtype()), ("the second summand", b.dtype()))?;
    for (of_a, of_b) in a.dims().into_iter().zip(b.dims()) {
        same_size(("a dimension of the first summand", of_a), ("the same dimension of the second summand", of_b))?;
    }
    Ok(Tensor::from_dispatch(run(AddRelu::Forward, vec![a.into_dispatch(), b.into_dispatch()]).remove(0)))
}

/// Addition and ReLU, and the gradient of each summand from output and gradient of the output.
#[derive(Clone, Copy, Debug)]
enum AddRelu {
    Forward,
    Backward,
}

impl Kernel for AddRelu {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward => &FORWARD,
            Self::Backward => &BACKWARD,
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [first, second] = all(inputs);
        match self {
            Self::Forward => vec![composed::forward::<B>(first, second)],
            Self::Backward => vec![composed::backward::<B>(first, second)],
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let [first, second] = all(inputs);
        match self {
            Self::Forward => vec![flex::forward(first, &second)],
            Self::Backward => vec![flex::backward(&first, second)],
        }
    }
}

impl Operation for AddRelu {
    const NAME: &'static str = "add and ReLU";

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
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let gradient = B::run(&Self::Backward, vec![y, gradient]).pop();
        match wanted {
            [true, true] => vec![gradient.clone(), gradient],
            [true, _] => vec![gradient, None],
            _ => vec![None, gradient],
        }
    }
}

/// Values of a piece.
const PIECE: usize = 4096;

static FORWARD: Cost = Cost {
    in_place: &[(0, 0)],
    cpu_scratch: scratch,
    gpu_scratch: |call, _| call.wide(0, 2),
    ..Cost::new("kiln::add_relu")
};

/// Inputs: output, gradient.
static BACKWARD: Cost = Cost {
    in_place: &[(1, 0)],
    cpu_scratch: scratch,
    gpu_scratch: |call, _| call.wide(0, 2),
    ..Cost::new("kiln::add_relu_backward")
};

/// Buffers of a piece of both inputs and of the output for each thread.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    call.chunks(PIECE, 3, cpu)
}

#[cfg(feature = "flex")]
mod flex {
    //! Addition and ReLU on the CPU: one pass in each direction.
    //!
    //! Scratch memory: at most 64 KiB for each thread. Multiply-adds for each value: 1 forward, 0 backward. The output is written over a
    //! summand if no other handle to it exists, and the gradients over the output's gradient.

    use burn::backend::TensorMetadata;
    use burn::backend::flex::FlexTensor;
    use rayon::prelude::*;

    use crate::add_relu::PIECE;
    use kiln_operations::by_dtype;
    use kiln_operations::cpu::stored::{Stored, owned, zeros};
    use kiln_operations::simd;

    /// The fewest pieces of a task.
    const PIECES: usize = 8;

    simd! { fn add_piece(y: &mut [f32], a: &[f32], b: &[f32]) {
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            let sum = a + b;
            *y = if sum <= 0.0 { 0.0 } else { sum };
        }
    }}

    simd! { fn add_in_place(y: &mut [f32], b: &[f32]) {
        for (y, b) in y.iter_mut().zip(b) {
            let sum = *y + b;
            *y = if sum <= 0.0 { 0.0 } else { sum };
        }
    }}

    simd! { fn mask_piece(gradient: &mut [f32], y: &[f32]) {
        gradient.iter_mut().zip(y).for_each(|(g, &y)| *g = if y <= 0.0 { 0.0 } else { *g });
    }}

    pub(super) fn forward(a: FlexTensor, b: &FlexTensor) -> FlexTensor {
        fn run<E: Stored>(a: FlexTensor, b: &FlexTensor) -> FlexTensor {
            let b = b.to_contiguous();
            if a.is_unique() {
                return changed::<E>(a, &b, add_in_place);
            }
            let a = a.to_contiguous();
            let mut y = zeros(a.shape(), a.dtype());
            let pieces = a.storage::<E>().par_chunks(PIECE).zip(b.storage::<E>().par_chunks(PIECE));
            y.storage_mut::<E>().par_chunks_mut(PIECE).zip(pieces).with_min_len(PIECES).for_each_init(
                || [(); 3].map(|()| vec![]),
                |[first, second, kept], (y, (a, b))| {
                    let (a, b) = (E::widened(a, first), E::widened(b, second));
                    E::written(y, kept, |y| add_piece(y, a, b));
                },
            );
            y
        }
        by_dtype!(a.dtype(), E => run::<E>(a, b), else a)
    }

    pub(super) fn backward(y: &FlexTensor, gradient: FlexTensor) -> FlexTensor {
        by_dtype!(y.dtype(), E => changed::<E>(gradient, &y.to_contiguous(), mask_piece), else gradient)
    }

    /// Changes the values of a tensor by those of another. The tensor is overwritten if no other handle to it exists.
    fn changed<E: Stored>(tensor: FlexTensor, other: &FlexTensor, change: fn(&mut [f32], &[f32])) -> FlexTensor {
        let mut tensor = owned(tensor);
        let pieces = tensor.storage_mut::<E>().par_chunks_mut(PIECE).zip(other.storage::<E>().par_chunks(PIECE));
        pieces.with_min_len(PIECES).for_each_init(
            || (vec![], vec![]),
            |(wide, kept), (values, other)| {
                let other = E::widened(other, wide);
                E::changed(values, kept, |values| change(values, other));
            },
        );
        tensor
    }
}

mod composed {
    //! Addition and ReLU in a backend's own operations.
    //!
    //! Peak memory in addition to inputs and outputs: one f32 tensor and a mask in each direction. burn fuses them away if it can.

    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Backend, TensorMetadata};

    use crate::composed::Wide;

    pub(super) fn forward<B: Backend>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
        let dtype = a.dtype();
        let sum = Wide::<B>::of(&a) + Wide::<B>::of(&b);
        sum.clone().fill(sum.not_positive(), 0.0).narrow(dtype)
    }

    pub(super) fn backward<B: Backend>(y: FloatTensor<B>, gradient: FloatTensor<B>) -> FloatTensor<B> {
        let dtype = y.dtype();
        Wide::<B>::of(&gradient).fill(Wide::<B>::of(&y).not_positive(), 0.0).narrow(dtype)
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
            let [a, b, gradient] = [1, 2, 3].map(|seed| numbers([3, 5, 7], seed, 1.0, dtype));
            let y = flex::forward(a.clone(), &b);
            assert_close(&forward::<Flex>(a, b), &y, "forward");
            let kernel = flex::backward(&y, gradient.clone());
            assert_close(&backward::<Flex>(y, gradient), &kernel, "backward");
        }
    }
}
