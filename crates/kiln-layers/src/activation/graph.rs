//! Activations as operations of burn's graph.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
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

/// An activation other than ReLU, which keeps its input.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfInput(pub(super) Activation);

impl LightOperation for OfInput {
    const NAME: &'static str = "activation";

    fn forward<B: KernelBackend>(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let [y] = all(B::run(&Activate::Forward(self.0), vec![x]));
        y
    }

    fn gradient<B: KernelBackend>(&self, x: FloatTensor<B>, gradient: FloatTensor<B>) -> FloatTensor<B> {
        let [dx] = all(B::run(&Activate::Backward(self.0), vec![x, gradient]));
        dx
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
