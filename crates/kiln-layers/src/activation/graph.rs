//! Activations as operations of burn's graph.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
#[cfg(feature = "cube")]
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, LightOperation, Operation, all};

use super::settings::{Activation, BACKWARD, FORWARD};

/// An activation, and the gradient of its input from what is kept and the gradient of the output. The input is kept or, for ReLU, the
/// output, which is positive where its input is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Activate {
    Forward(Activation),
    Backward(Activation),
}

impl Kernel for Activate {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::Backward(_) => &BACKWARD,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        let (Self::Forward(activation) | Self::Backward(activation)) = self;
        vec![*activation as i64]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        vec![match *self {
            Self::Forward(activation) => {
                let [x] = all(inputs);
                super::composed::forward::<B>(x, activation)
            }
            Self::Backward(activation) => {
                let [kept, gradient] = all(inputs);
                super::composed::backward::<B>(kept, gradient, activation)
            }
        }]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, _: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        (inputs[0].0.num_elements() > 0).then_some(Self::launch)
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        vec![match *self {
            Self::Forward(activation) => super::flex::forward(&inputs[0], activation),
            Self::Backward(activation) => {
                let [kept, gradient] = all(inputs);
                super::flex::backward(&kept, gradient, activation)
            }
        }]
    }
}

#[cfg(feature = "cube")]
impl Activate {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        vec![match *self {
            Self::Forward(activation) => {
                let [x] = all(inputs);
                super::cube::forward(x, activation)
            }
            Self::Backward(activation) => {
                let [kept, gradient] = all(inputs);
                super::cube::backward(kept, gradient, activation)
            }
        }]
    }
}

/// The output of an activation, as a part of another operation.
pub(crate) fn activated<B: KernelBackend>(x: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    let [y] = all(B::run(&Activate::Forward(activation), vec![x]));
    y
}

/// The gradient of an activation's input, from what it keeps.
pub(crate) fn activation_gradient<B: KernelBackend>(
    kept: FloatTensor<B>,
    gradient: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B> {
    let [dx] = all(B::run(&Activate::Backward(activation), vec![kept, gradient]));
    dx
}

/// An activation other than ReLU, which keeps its input.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfInput(pub(super) Activation);

impl LightOperation for OfInput {
    const NAME: &'static str = "activation";

    fn forward<B: KernelBackend>(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        activated::<B>(x, self.0)
    }

    fn gradient<B: KernelBackend>(&self, x: FloatTensor<B>, gradient: FloatTensor<B>) -> FloatTensor<B> {
        activation_gradient::<B>(x, gradient, self.0)
    }
}

/// ReLU. Its output has everything that the backward pass needs, and the next layer keeps it as well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relu;

impl Operation for Relu {
    const NAME: &'static str = "relu";

    /// The output.
    type Saved<B: KernelBackend> = FloatTensor<B>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, FloatTensor<B>> {
        let outputs = B::run(&Activate::Forward(Activation::Relu), inputs);
        Computed { saved: Some(outputs[0].clone()), outputs }
    }

    fn gradient<B: KernelBackend>(
        &self,
        y: FloatTensor<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        B::run(&Activate::Backward(Activation::Relu), vec![y, gradient]).into_iter().map(Some).collect()
    }
}
