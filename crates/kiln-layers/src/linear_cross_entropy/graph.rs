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
use kiln_operations::{Computed, Cost, InOrder, Kernel, KernelBackend, Onto, Operation, all};

use super::settings::{
    GRADIENTS, GRADIENTS_ONTO, Inputs, LOSS, LossGradients, LossInputs, SCALE, WEIGHTED_GRADIENTS, kept_dtype,
};
use super::{LossOptions, Reduction};
use crate::composed::cast;
use crate::order::{Order, sum_or_zeros};

/// The computations of the loss. Inputs are hidden rows, weight, bias, targets, class weights and row weights; missing ones have no
/// elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum LossKernel {
    /// The loss in f32: `[1]`, or `[rows]` without a reduction.
    Loss(LossOptions),
    /// The reduced loss, `[1]` in f32, and the gradients of hidden rows, weight and bias. Those that are not wanted have no meaning. If rows
    /// are added in their order, the gradients are those of the rows' losses, and the last output is the number that these are divided by,
    /// `[1]` in f32. The sums of weight and bias follow the inputs, if there are any.
    Gradients(LossOptions, [bool; 3], Order),
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
            Self::Gradients(options, _, Order::Any | Order::Rows) if !options.is_mean_of_rows() => &WEIGHTED_GRADIENTS,
            Self::Gradients(_, _, Order::Onto) => &GRADIENTS_ONTO,
            Self::Gradients(..) => &GRADIENTS,
            Self::Scale(_) => &SCALE,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        match self {
            Self::Gradients(_, _, order) => vec![order.scalar()],
            _ => vec![],
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Loss(options) => {
                let length = if options.reduction == Reduction::None { inputs[0].0[0] } else { 1 };
                vec![(Shape::new([length]), DType::F32)]
            }
            Self::Gradients(_, wanted, order) => {
                let dtypes = [kept_dtype(inputs[0].1), DType::F32, DType::F32];
                // A gradient that is not wanted has no elements.
                let shape = |input: usize| if wanted[input] { inputs[input].0.clone() } else { Shape::new([0]) };
                let gradients = (0..3).map(|input| (shape(input), dtypes[input]));
                let one = || (Shape::new([1]), DType::F32);
                let total = (*order != Order::Any).then(one);
                [one()].into_iter().chain(gradients).chain(total).collect()
            }
            Self::Scale(dtype) => vec![(inputs[0].0.clone(), *dtype)],
        }
    }

    fn composed<B: KernelBackend>(&self, mut inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match *self {
            Self::Loss(options) => vec![super::composed::loss::<B>(inputs_of::<B>(inputs), options)],
            Self::Gradients(options, wanted, order) => {
                let sums = if order == Order::Onto { inputs.split_off(6) } else { vec![] };
                let made = super::composed::loss_and_gradients::<B>(inputs_of::<B>(inputs), options, wanted);
                let mut outputs = outputs_of(made);
                for (gradient, sum) in outputs[2..].iter_mut().zip(sums) {
                    *gradient = B::float_add(sum, gradient.clone());
                }
                if order != Order::Any {
                    // The gradients are divided already.
                    outputs.push(B::float_ones(Shape::new([1]), &outputs[0].device(), FloatDType::F32));
                }
                outputs
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
        let has_values = has_values && !matches!(self, Self::Gradients(_, _, Order::Rows | Order::Onto));
        (has_values && super::cube::takes(device)).then_some(Self::launch)
    }

    #[cfg(feature = "flex")]
    fn flex(&self, mut inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let inputs_of = inputs_of::<burn::backend::Flex>;
        match *self {
            Self::Loss(options) => vec![super::flex::loss(&inputs_of(inputs), &options)],
            Self::Gradients(options, wanted, order) => {
                let sums = if order == Order::Onto { inputs.split_off(6) } else { vec![] };
                let sums = match order {
                    Order::Any => None,
                    Order::Rows => Some(None),
                    Order::Onto => Some(Some(all(sums))),
                };
                let made = super::flex::loss_and_gradients(&inputs_of(inputs), &options, wanted, sums);
                let total = made.2;
                outputs_of((made.0, made.1)).into_iter().chain(total).collect()
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
            Self::Gradients(options, wanted, _) => {
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

/// What the backward pass needs, and the dtypes of the hidden rows and of the weight that was given.
#[derive(Clone, Debug)]
pub(crate) enum Saved<T> {
    /// The inputs: a row's gradient is known only in the backward pass, which computes the logits again.
    Inputs(Vec<T>, [DType; 2]),
    /// The gradients of hidden rows, weight and bias for a factor of 1. The logits exist once, since their gradients are computed together
    /// with them.
    Gradients(Vec<T>, [DType; 2]),
    /// The gradients of the rows' losses, added in the order of the rows: of hidden rows, weight and bias, and the number that the losses are
    /// divided by. Those of weight and bias are not here if they are in running sums.
    InOrder { gradients: [Option<T>; 3], total: T, dtypes: [DType; 2] },
}

impl LossOptions {
    /// The inputs with a weight `[width, classes]` in the dtype of the hidden rows, and the dtype of the weight that was given.
    fn prepared<B: KernelBackend>(&self, mut inputs: Vec<FloatTensor<B>>) -> (Vec<FloatTensor<B>>, DType) {
        let dtype = inputs[1].dtype();
        if self.by_class {
            let hidden = inputs[0].dtype();
            let weight = inputs.remove(1);
            inputs.insert(1, B::float_transpose(cast::<B>(weight, hidden)));
        }
        (inputs, dtype)
    }

    /// The gradient of the weight that was given.
    fn of_given<B: KernelBackend>(&self, gradient: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
        if self.by_class { cast::<B>(B::float_transpose(gradient), dtype) } else { gradient }
    }
}

impl Operation for LossOptions {
    const NAME: &'static str = "linear cross-entropy";

    type Saved<B: KernelBackend> = Saved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let (inputs, weight) = self.prepared::<B>(inputs);
        let dtypes = [inputs[0].dtype(), weight];
        if self.reduction == Reduction::None || !wanted.contains(&true) {
            let saved = wanted.contains(&true).then(|| Saved::Inputs(inputs.clone(), dtypes));
            return Computed { outputs: B::run(&LossKernel::Loss(*self), inputs), saved };
        }
        let kernel = LossKernel::Gradients(*self, [wanted[0], wanted[1], wanted[2]], Order::Any);
        let mut outputs = B::run(&kernel, inputs);
        let gradients = outputs.split_off(1);
        Computed { outputs, saved: Some(Saved::Gradients(gradients, dtypes)) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let (mut made, weight) = match saved {
            Saved::Inputs(mut inputs, [dtype, weight]) => {
                let one = B::float_ones(Shape::new([1]), &gradient.device(), FloatDType::F32);
                let row_weights = inputs.split_off(5).remove(0);
                inputs.push(match row_weights.shape().num_elements() {
                    0 => gradient,
                    _ => B::float_mul(row_weights, gradient),
                });
                let options = LossOptions { reduction: Reduction::Sum, ..*self };
                let kernel = LossKernel::Gradients(options, [wanted[0], wanted[1], wanted[2]], Order::Any);
                (scaled::<B>(B::run(&kernel, inputs).split_off(1), wanted, &one, dtype), weight)
            }
            Saved::Gradients(gradients, [dtype, weight]) => (scaled::<B>(gradients, wanted, &gradient, dtype), weight),
            Saved::InOrder { gradients, total, dtypes: [dtype, weight] } => {
                let factor = B::float_div(gradient, total);
                let scaled = |gradient| B::run(&LossKernel::Scale(dtype), vec![gradient, factor.clone()]).remove(0);
                (gradients.into_iter().map(|gradient| gradient.map(scaled)).collect(), weight)
            }
        };
        if let Some(of_weight) = made.get_mut(1).and_then(Option::take) {
            made[1] = Some(self.of_given::<B>(of_weight, weight));
        }
        made
    }

    fn in_order(&self) -> InOrder {
        match self.reduction {
            Reduction::Mean | Reduction::Sum => InOrder::Forward(&[1, 2]),
            Reduction::None => InOrder::Never,
        }
    }

    fn forward_in_order<B: KernelBackend>(
        &self,
        inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
        sums: Vec<Onto<FloatTensor<B>>>,
    ) -> (Computed<B, Self::Saved<B>>, Vec<Option<FloatTensor<B>>>) {
        if self.reduction == Reduction::None || !wanted.contains(&true) {
            return (self.forward(inputs, wanted), vec![]);
        }
        let (mut inputs, weight) = self.prepared::<B>(inputs);
        let (dtypes, order) = ([inputs[0].dtype(), weight], Order::of(&sums));
        let summed: Vec<bool> = sums.iter().map(|sum| !sum.is_apart()).collect();
        if order == Order::Onto {
            let device = inputs[0].device();
            let shapes = [1, 2].map(|input: usize| inputs[input].shape());
            for ((input, sum), shape) in sums.into_iter().enumerate().skip(1).zip(shapes) {
                let sum = match sum {
                    Onto::Sum(sum) if input == 1 && self.by_class => Onto::Sum(B::float_transpose(sum)),
                    sum => sum,
                };
                inputs.push(sum_or_zeros::<B>(sum, shape, &device));
            }
        }
        let mut outputs = B::run(&LossKernel::Gradients(*self, [wanted[0], wanted[1], wanted[2]], order), inputs);
        let total = outputs.remove(4);
        let mut gradients =
            outputs.split_off(1).into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient));
        let mut gradients = [(); 3].map(|()| gradients.next().flatten());
        let mut sums = vec![];
        for input in [1, 2] {
            if summed[input] {
                let sum = gradients[input].take();
                sums.push(if input == 1 { sum.map(|sum| self.of_given::<B>(sum, DType::F32)) } else { sum });
            }
        }
        (Computed { outputs, saved: Some(Saved::InOrder { gradients, total, dtypes }) }, sums)
    }

    fn factor<B: KernelBackend>(saved: &Self::Saved<B>, gradient: &FloatTensor<B>) -> FloatTensor<B> {
        match saved {
            Saved::InOrder { total, .. } => B::float_div(gradient.clone(), total.clone()),
            _ => gradient.clone(),
        }
    }
}
