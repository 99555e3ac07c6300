//! The loss of a linear layer as an operation of burn's graph.

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all};

use super::settings::{GRADIENTS, Inputs, LOSS, LossGradients, LossInputs, SCALE, kept_dtype};
use super::{LossOptions, Reduction};

/// The computations of the loss. Inputs are hidden rows, weight, bias, targets, class weights and row weights; missing ones have no
/// elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum LossKernel {
    /// The loss in f32: `[1]`, or `[rows]` without a reduction.
    Loss(LossOptions),
    /// The reduced loss, `[1]` in f32, and the gradients of hidden rows, weight and bias. Those that are not wanted have no meaning.
    Gradients(LossOptions, [bool; 3]),
    /// A gradient times a factor of one element in f32, in a dtype.
    Scale(DType),
}

/// The inputs from their list.
fn inputs_of<B: KernelBackend>(inputs: Vec<FloatTensor<B>>) -> Inputs<B> {
    let [hidden, weight, bias, targets, class_weights, row_weights] = all(inputs);
    LossInputs { hidden, weight, bias, targets: B::int(targets), class_weights, row_weights }
}

/// The loss and its gradients as the outputs of a kernel.
fn outputs_of<T: Clone>((loss, gradients): (T, LossGradients<T>)) -> Vec<T> {
    let LossGradients { hidden, weight, bias } = gradients;
    let gradients = [hidden, weight, bias].map(|gradient| gradient.unwrap_or_else(|| loss.clone()));
    [loss].into_iter().chain(gradients).collect()
}

impl Kernel for LossKernel {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Loss(_) => &LOSS,
            Self::Gradients(..) => &GRADIENTS,
            Self::Scale(_) => &SCALE,
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Loss(options) => {
                let length = if options.reduction == Reduction::None { inputs[0].0[0] } else { 1 };
                vec![(Shape::new([length]), DType::F32)]
            }
            Self::Gradients(_, wanted) => {
                let dtypes = [kept_dtype(inputs[0].1), DType::F32, DType::F32];
                // A gradient that is not wanted has no elements.
                let shape = |input: usize| if wanted[input] { inputs[input].0.clone() } else { Shape::new([0]) };
                let gradients = (0..3).map(|input| (shape(input), dtypes[input]));
                [(Shape::new([1]), DType::F32)].into_iter().chain(gradients).collect()
            }
            Self::Scale(dtype) => vec![(inputs[0].0.clone(), *dtype)],
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match *self {
            Self::Loss(options) => vec![super::composed::loss::<B>(inputs_of::<B>(inputs), options)],
            Self::Gradients(options, wanted) => {
                outputs_of(super::composed::loss_and_gradients::<B>(inputs_of::<B>(inputs), options, wanted))
            }
            Self::Scale(dtype) => {
                let [gradient, factor] = all(inputs);
                vec![super::composed::scaled::<B>(gradient, factor, dtype)]
            }
        }
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        let computed = if matches!(self, Self::Scale(_)) { 1 } else { 2 };
        let has_values = inputs[..computed].iter().all(|(shape, _)| shape.num_elements() > 0);
        (has_values && super::cube::takes(device)).then_some(Self::launch)
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let inputs_of = inputs_of::<burn::backend::Flex>;
        match *self {
            Self::Loss(options) => vec![super::flex::loss(&inputs_of(inputs), &options)],
            Self::Gradients(options, wanted) => {
                outputs_of(super::flex::loss_and_gradients(&inputs_of(inputs), &options, wanted))
            }
            Self::Scale(dtype) => {
                let [gradient, factor] = all(inputs);
                vec![super::scale::scaled(gradient, &factor, dtype)]
            }
        }
    }
}

#[cfg(feature = "cube")]
impl LossKernel {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        let inputs_of = |inputs| {
            let [hidden, weight, bias, targets, class_weights, row_weights] = all(inputs);
            LossInputs { hidden, weight, bias, targets, class_weights, row_weights }
        };
        match *self {
            Self::Loss(options) => vec![super::cube::loss_and_gradients(inputs_of(inputs), options, [false; 3]).0],
            Self::Gradients(options, wanted) => {
                outputs_of(super::cube::loss_and_gradients(inputs_of(inputs), options, wanted))
            }
            Self::Scale(dtype) => {
                let [gradient, factor] = all(inputs);
                vec![super::cube::scaled(gradient, factor, dtype)]
            }
        }
    }
}

/// Gradients that are `wanted`, times a factor of one element in f32, in `dtype`.
fn scaled<B: KernelBackend>(
    gradients: impl IntoIterator<Item = FloatTensor<B>>,
    wanted: &[bool],
    factor: &FloatTensor<B>,
    dtype: DType,
) -> Vec<Option<FloatTensor<B>>> {
    let scaled = |(gradient, wanted): (_, &bool)| match wanted {
        true => B::run(&LossKernel::Scale(dtype), vec![gradient, factor.clone()]).pop(),
        false => None,
    };
    gradients.into_iter().zip(wanted).map(scaled).collect()
}

/// What the backward pass needs, and the dtype of the gradients.
#[derive(Clone, Debug)]
pub(crate) enum Saved<T> {
    /// The inputs: a row's gradient is known only in the backward pass, which computes the logits again.
    Inputs(Vec<T>, DType),
    /// The gradients of hidden rows, weight and bias for a factor of 1. The logits exist once, since their gradients are computed together
    /// with them.
    Gradients(Vec<T>, DType),
}

impl Operation for LossOptions {
    const NAME: &'static str = "linear cross-entropy";

    type Saved<B: KernelBackend> = Saved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let dtype = inputs[0].dtype();
        if self.reduction == Reduction::None || !wanted.contains(&true) {
            let saved = wanted.contains(&true).then(|| Saved::Inputs(inputs.clone(), dtype));
            return Computed { outputs: B::run(&LossKernel::Loss(*self), inputs), saved };
        }
        let mut outputs = B::run(&LossKernel::Gradients(*self, [wanted[0], wanted[1], wanted[2]]), inputs);
        let gradients = outputs.split_off(1);
        Computed { outputs, saved: Some(Saved::Gradients(gradients, dtype)) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        match saved {
            Saved::Inputs(mut inputs, dtype) => {
                let one = B::float_ones(Shape::new([1]), &gradient.device(), FloatDType::F32);
                let row_weights = inputs.split_off(5).remove(0);
                inputs.push(match row_weights.shape().num_elements() {
                    0 => gradient,
                    _ => B::float_mul(row_weights, gradient),
                });
                let options = LossOptions { reduction: Reduction::Sum, ..*self };
                let kernel = LossKernel::Gradients(options, [wanted[0], wanted[1], wanted[2]]);
                scaled::<B>(B::run(&kernel, inputs).split_off(1), wanted, &one, dtype)
            }
            Saved::Gradients(gradients, dtype) => scaled::<B>(gradients, wanted, &gradient, dtype),
        }
    }
}
