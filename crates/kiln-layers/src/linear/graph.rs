//! Linear layers with a prologue as an operation of burn's graph.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all};

use super::Prologue;
use super::settings::{FORWARD, INPUT_BACKWARD, PROLOGUE_INPUT_BACKWARD, WEIGHT_BACKWARD};
use crate::norm::statistics_like;

/// The computations of a linear layer with a prologue. A missing parameter has no elements.
#[derive(Clone, Copy, Debug)]
enum Layer {
    /// Output, and the [statistics](crate::norm) of each row if the prologue is a norm, from x, norm's weight and bias, weight and bias.
    Forward(Prologue),
    /// The gradients of weight and bias, from x, statistics, norm's weight and bias, weight and gradient.
    WeightBackward(Prologue),
    /// The gradients of the input and of the norm's weight and bias, from the same.
    InputBackward(Prologue),
}

impl Kernel for Layer {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::WeightBackward(_) => &WEIGHT_BACKWARD,
            Self::InputBackward(Prologue::None) => &INPUT_BACKWARD,
            Self::InputBackward(_) => &PROLOGUE_INPUT_BACKWARD,
        }
    }

    /// The kind of prologue.
    fn scalars(&self) -> Vec<i64> {
        let (Self::Forward(prologue) | Self::WeightBackward(prologue) | Self::InputBackward(prologue)) = self;
        vec![match prologue {
            Prologue::None => 0,
            Prologue::Norm(_) => 1,
            Prologue::Activation(_) => 2,
        }]
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let (x, dtype) = inputs[0].clone();
        match self {
            Self::Forward(prologue) => {
                let statistics = match prologue {
                    Prologue::Norm(_) => statistics_like(&x),
                    _ => (Shape::new([0, 2]), DType::F32),
                };
                let mut shape = x;
                let last = shape.num_dims() - 1;
                shape[last] = inputs[3].0[1];
                vec![(shape, dtype), statistics]
            }
            Self::WeightBackward(_) => {
                let (weight, dtype) = inputs[4].clone();
                let bias = (Shape::new([weight[1]]), dtype);
                vec![(weight, dtype), bias]
            }
            Self::InputBackward(_) => vec![(x, dtype), inputs[2].clone(), inputs[2].clone()],
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        use super::composed::{forward, input_gradient, weight_gradient};
        match *self {
            Self::Forward(prologue) => {
                let [x, norm_weight, norm_bias, weight, bias] = all(inputs);
                forward::<B>(x, [norm_weight, norm_bias], weight, bias, prologue).into()
            }
            Self::WeightBackward(prologue) => {
                let [x, _, norm_weight, norm_bias, weight, gradient] = all(inputs);
                weight_gradient::<B>(x, [norm_weight, norm_bias], weight, gradient, prologue).into()
            }
            Self::InputBackward(prologue) => {
                let [x, statistics, norm_weight, norm_bias, weight, gradient] = all(inputs);
                input_gradient::<B>(x, statistics, [norm_weight, norm_bias], weight, gradient, prologue).into()
            }
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        use super::flex::{forward, input_gradient, weight_gradient};
        match *self {
            Self::Forward(prologue) => {
                let [x, norm_weight, norm_bias, weight, bias] = all(inputs);
                forward(&x, [&norm_weight, &norm_bias], &weight, &bias, prologue).into()
            }
            Self::WeightBackward(prologue) => {
                let [x, statistics, norm_weight, norm_bias, weight, gradient] = all(inputs);
                weight_gradient(&x, &statistics, [&norm_weight, &norm_bias], &weight, &gradient, prologue).into()
            }
            Self::InputBackward(prologue) => {
                let [x, statistics, norm_weight, norm_bias, weight, gradient] = all(inputs);
                input_gradient(x, &statistics, [&norm_weight, &norm_bias], &weight, &gradient, prologue).into()
            }
        }
    }
}

/// The output, and the statistics of each row, from x, norm's weight and bias, weight and bias.
pub(crate) fn prologue_linear<B: KernelBackend>(
    inputs: [FloatTensor<B>; 5],
    prologue: Prologue,
) -> [FloatTensor<B>; 2] {
    all(B::run(&Layer::Forward(prologue), inputs.into()))
}

impl Operation for Prologue {
    const NAME: &'static str = "linear";

    type Saved<B: KernelBackend> = LinearSaved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let kept = wanted.contains(&true).then(|| inputs[..4].to_vec());
        let [y, statistics] = all(B::run(&Layer::Forward(*self), inputs));
        let saved = kept.map(|kept| {
            let [x, norm_weight, norm_bias, weight] = all(kept);
            LinearSaved { x, statistics, norm: [norm_weight, norm_bias], weight, prologue: *self }
        });
        Computed { outputs: vec![y], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        gradients::<B>(saved, gradient, all(wanted.to_vec())).into()
    }
}

/// The tensors that the backward pass needs.
#[derive(Clone, Debug)]
pub(crate) struct LinearSaved<T> {
    pub(crate) x: T,
    /// The statistics of the rows of `x`.
    pub(crate) statistics: T,
    /// The norm's weight and bias.
    pub(crate) norm: [T; 2],
    pub(crate) weight: T,
    pub(crate) prologue: Prologue,
}

/// The gradients of input, norm's weight and bias, and the layer's weight and bias.
pub(crate) fn gradients<B: KernelBackend>(
    saved: LinearSaved<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    [for_x, for_norm_weight, for_norm_bias, for_weight, for_bias]: [bool; 5],
) -> [Option<FloatTensor<B>>; 5] {
    // The gradient of the weight comes first, since the gradient of the input may be written over the input.
    let (mut of_x, mut of_norm_weight, mut of_norm_bias, mut of_weight, mut of_bias) = (None, None, None, None, None);
    if for_weight || for_bias {
        let (LinearSaved { x, statistics, norm, weight, prologue }, gradient) = (saved.clone(), gradient.clone());
        let gradients = B::run(&Layer::WeightBackward(prologue), listed(x, statistics, norm, weight, gradient));
        [of_weight, of_bias] = all(gradients).map(Some);
    }
    if for_x || for_norm_weight || for_norm_bias {
        let LinearSaved { x, statistics, norm, weight, prologue } = saved;
        let gradients = B::run(&Layer::InputBackward(prologue), listed(x, statistics, norm, weight, gradient));
        [of_x, of_norm_weight, of_norm_bias] = all(gradients).map(Some);
    }
    [of_x, of_norm_weight, of_norm_bias, of_weight, of_bias]
}

/// The inputs of a backward pass in their order.
fn listed<T>(x: T, statistics: T, [norm_weight, norm_bias]: [T; 2], weight: T, gradient: T) -> Vec<T> {
    vec![x, statistics, norm_weight, norm_bias, weight, gradient]
}
