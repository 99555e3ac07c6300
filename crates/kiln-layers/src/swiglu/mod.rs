//! SwiGLU.

mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod settings;

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, Tensor};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all, run};

use crate::check::{main_input, same_dtype, same_size};
use crate::error::Error;
use settings::{BACKWARD, FORWARD};

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

    #[cfg(feature = "cube")]
    fn cube(&self, _: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        (inputs[0].0.num_elements() > 0).then_some(Self::launch)
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

#[cfg(feature = "cube")]
impl Swiglu {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        match self {
            Self::Forward => {
                let [gate, up] = all(inputs);
                vec![cube::forward(gate, up)]
            }
            Self::Backward => cube::backward(all(inputs)).into(),
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
