//! Linear layers with a prologue as an operation of burn's graph.

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use kiln_operations::{Computed, Cost, InOrder, Kernel, KernelBackend, Onto, Operation, all};

use super::Prologue;
use super::settings::{
    FORWARD, INPUT_BACKWARD, PROLOGUE_INPUT_BACKWARD, PROLOGUE_INPUT_BACKWARD_ONTO, WEIGHT_BACKWARD,
    WEIGHT_BACKWARD_ONTO,
};
use crate::composed::cast;
use crate::norm::statistics_like;
use crate::order::{Order, sum_or_zeros};

/// The computations of a linear layer with a prologue. A missing parameter has no elements.
#[derive(Clone, Copy, Debug)]
enum Layer {
    /// Output, and the [statistics](crate::norm) of each row if the prologue is a norm, from x, norm's weight and bias, weight and bias.
    Forward(Prologue),
    /// The gradients of weight and bias, from x, statistics, norm's weight and bias, weight and gradient, and sums of both if they are to
    /// be added to.
    WeightBackward(Prologue, Order),
    /// The gradients of the input and of the norm's weight and bias, from the same, and sums of the latter.
    InputBackward(Prologue, Order),
}

impl Kernel for Layer {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::WeightBackward(_, Order::Onto) => &WEIGHT_BACKWARD_ONTO,
            Self::WeightBackward(..) => &WEIGHT_BACKWARD,
            Self::InputBackward(Prologue::None, _) => &INPUT_BACKWARD,
            Self::InputBackward(_, Order::Onto) => &PROLOGUE_INPUT_BACKWARD_ONTO,
            Self::InputBackward(..) => &PROLOGUE_INPUT_BACKWARD,
        }
    }

    /// The kind of prologue, and the order of sums.
    fn scalars(&self) -> Vec<i64> {
        let (Self::Forward(prologue) | Self::WeightBackward(prologue, _) | Self::InputBackward(prologue, _)) = self;
        let kind = match prologue {
            Prologue::None => 0,
            Prologue::Norm(_) => 1,
            Prologue::Activation(_) => 2,
        };
        vec![kind, self.order().scalar()]
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
            Self::WeightBackward(_, order) => {
                let (weight, dtype) = (inputs[4].0.clone(), order.dtype(inputs[4].1));
                let bias = (Shape::new([weight[1]]), dtype);
                vec![(weight, dtype), bias]
            }
            Self::InputBackward(_, order) => {
                let norm = (inputs[2].0.clone(), order.dtype(inputs[2].1));
                vec![(x, dtype), norm.clone(), norm]
            }
        }
    }

    fn composed<B: KernelBackend>(&self, mut inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        use super::composed::{forward, input_gradient, weight_gradient};
        let sums = if self.is_onto() { inputs.split_off(6) } else { vec![] };
        let mut made: Vec<FloatTensor<B>> = match *self {
            Self::Forward(prologue) => {
                let [x, norm_weight, norm_bias, weight, bias] = all(inputs);
                forward::<B>(x, [norm_weight, norm_bias], weight, bias, prologue).into()
            }
            Self::WeightBackward(prologue, _) => {
                let [x, _, norm_weight, norm_bias, weight, gradient] = all(inputs);
                weight_gradient::<B>(x, [norm_weight, norm_bias], weight, gradient, prologue).into()
            }
            Self::InputBackward(prologue, _) => {
                let [x, statistics, norm_weight, norm_bias, weight, gradient] = all(inputs);
                input_gradient::<B>(x, statistics, [norm_weight, norm_bias], weight, gradient, prologue).into()
            }
        };
        // The last two are the gradients of two parameters, unless this is the forward pass.
        let first = if self.order() == Order::Any { made.len() } else { made.len() - 2 };
        for gradient in &mut made[first..] {
            *gradient = cast::<B>(gradient.clone(), DType::F32);
        }
        for (gradient, sum) in made[first..].iter_mut().zip(sums) {
            *gradient = B::float_add(sum, gradient.clone());
        }
        made
    }

    #[cfg(feature = "flex")]
    fn flex(&self, mut inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        use super::flex::{forward, input_gradient, weight_gradient};
        let sums = self.is_onto().then(|| all(inputs.split_off(6)));
        match *self {
            Self::Forward(prologue) => {
                let [x, norm_weight, norm_bias, weight, bias] = all(inputs);
                forward(&x, [&norm_weight, &norm_bias], &weight, &bias, prologue).into()
            }
            Self::WeightBackward(prologue, order) => {
                let [x, statistics, norm_weight, norm_bias, weight, gradient] = all(inputs);
                let norm = [&norm_weight, &norm_bias];
                weight_gradient(&x, &statistics, norm, &weight, &gradient, prologue, (order, sums)).into()
            }
            Self::InputBackward(prologue, order) => {
                let [x, statistics, norm_weight, norm_bias, weight, gradient] = all(inputs);
                let norm = [&norm_weight, &norm_bias];
                input_gradient(x, &statistics, norm, &weight, &gradient, prologue, (order, sums)).into()
            }
        }
    }
}

impl Layer {
    fn order(&self) -> Order {
        match self {
            Self::Forward(_) => Order::Any,
            Self::WeightBackward(_, order) | Self::InputBackward(_, order) => *order,
        }
    }

    fn is_onto(&self) -> bool {
        self.order() == Order::Onto
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
        gradients::<B>(saved, gradient, all(wanted.to_vec()), None).into()
    }

    fn in_order(&self) -> InOrder {
        InOrder::Backward(&[1, 2, 3, 4])
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        gradients::<B>(saved, gradient, all(wanted.to_vec()), Some(sums)).into()
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

/// The gradients of input, norm's weight and bias, and the layer's weight and bias. With `sums` rows are added in their order, to the sums
/// that are there.
pub(crate) fn gradients<B: KernelBackend>(
    saved: LinearSaved<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    [for_x, for_norm_weight, for_norm_bias, for_weight, for_bias]: [bool; 5],
    sums: Option<Vec<Onto<FloatTensor<B>>>>,
) -> [Option<FloatTensor<B>>; 5] {
    let dtypes = [saved.norm[0].dtype(), saved.norm[0].dtype(), saved.weight.dtype(), saved.weight.dtype()];
    let apart = sums.as_ref().map(|sums| sums.iter().skip(1).map(Onto::is_apart).collect::<Vec<_>>());
    let (norm_sums, sums) = match sums {
        Some(sums) => {
            let [_, norm_weight, norm_bias, weight, bias] = all(sums.into_iter().take(5).collect());
            (Some([norm_weight, norm_bias]), Some([weight, bias]))
        }
        None => (None, None),
    };
    // The gradient of the weight comes first, since the gradient of the input may be written over the input.
    let (mut of_x, mut of_norm_weight, mut of_norm_bias, mut of_weight, mut of_bias) = (None, None, None, None, None);
    if for_weight || for_bias {
        let (shape, device) = (saved.weight.shape(), saved.weight.device());
        let shapes = [shape.clone(), Shape::new([shape[1]])];
        let (order, sums) = ordered::<B>(sums, shapes, &device);
        let mut inputs = saved.clone().listed(gradient.clone());
        inputs.extend(sums);
        [of_weight, of_bias] = all(B::run(&Layer::WeightBackward(saved.prologue, order), inputs)).map(Some);
    }
    if for_x || for_norm_weight || for_norm_bias {
        let (shape, device, prologue) = (saved.norm[0].shape(), saved.weight.device(), saved.prologue);
        let (order, sums) = ordered::<B>(norm_sums, [shape.clone(), shape], &device);
        let mut inputs = saved.listed(gradient);
        inputs.extend(sums);
        [of_x, of_norm_weight, of_norm_bias] = all(B::run(&Layer::InputBackward(prologue, order), inputs)).map(Some);
    }
    // A gradient that is no sum has the dtype of its parameter.
    let mut of_parameters = [of_norm_weight, of_norm_bias, of_weight, of_bias];
    for ((gradient, dtype), _) in
        of_parameters.iter_mut().zip(dtypes).zip(apart.into_iter().flatten()).filter(|(_, apart)| *apart)
    {
        *gradient = gradient.take().map(|gradient| cast::<B>(gradient, dtype));
    }
    let [of_norm_weight, of_norm_bias, of_weight, of_bias] = of_parameters;
    [of_x, of_norm_weight, of_norm_bias, of_weight, of_bias]
}

/// The order of the sums of two parameters, and the sums if there are any.
fn ordered<B: KernelBackend>(
    sums: Option<[Onto<FloatTensor<B>>; 2]>,
    shapes: [Shape; 2],
    device: &B::Device,
) -> (Order, Vec<FloatTensor<B>>) {
    let Some(sums) = sums else { return (Order::Any, vec![]) };
    match Order::of(&sums) {
        Order::Onto => {
            let sums = sums.into_iter().zip(shapes).map(|(sum, shape)| sum_or_zeros::<B>(sum, shape, device));
            (Order::Onto, sums.collect())
        }
        order => (order, vec![]),
    }
}

impl<T> LinearSaved<T> {
    /// The inputs of a backward pass in their order.
    fn listed(self, gradient: T) -> Vec<T> {
        let Self { x, statistics, norm: [norm_weight, norm_bias], weight, .. } = self;
        vec![x, statistics, norm_weight, norm_bias, weight, gradient]
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::{DType, Layer, Order, Prologue};
    use crate::activation::Activation;
    use crate::composed::tests::{DTYPES, assert_same_forms, numbers};
    use crate::norm::NormSettings;

    #[test]
    fn composed_as_the_kernels_in_any_order_of_sums() {
        let norm = Prologue::Norm(NormSettings { epsilon: 1e-5, centred: true });
        let kinds = [(Prologue::None, 0), (norm, 7), (Prologue::Activation(Activation::GeluTanh), 0)];
        for (dtype, (prologue, parameters)) in DTYPES.into_iter().flat_map(|dtype| kinds.map(|kind| (dtype, kind))) {
            let what = format!("{dtype:?}");
            let [x, weight] = [([9, 7], 1), ([7, 5], 2)].map(|(shape, seed)| numbers(shape, seed, 1.0, dtype));
            let [norm_weight, norm_bias, bias] =
                [(parameters, 3), (parameters, 4), (5, 5)].map(|(length, seed)| numbers([length], seed, 1.0, dtype));
            let given = [x.clone(), norm_weight.clone(), norm_bias.clone(), weight.clone(), bias];
            assert_same_forms(&Layer::Forward(prologue), &given, 2, &what);

            let [_, statistics] = super::prologue_linear::<burn::backend::Flex>(given, prologue);
            let given = [x, statistics, norm_weight, norm_bias, weight, numbers([9, 5], 6, 1.0, dtype)];
            let sum = |shape: &[usize], seed| match *shape {
                [rows, columns] => numbers([rows, columns], seed, 1.0, DType::F32),
                _ => numbers([shape[0]], seed, 1.0, DType::F32),
            };
            for order in [Order::Any, Order::Rows, Order::Onto] {
                let with = |sums: [&[usize]; 2]| {
                    let sums = (order == Order::Onto).then(|| [sum(sums[0], 8), sum(sums[1], 9)]);
                    given.iter().cloned().chain(sums.into_iter().flatten()).collect::<Vec<_>>()
                };
                assert_same_forms(&Layer::WeightBackward(prologue, order), &with([&[7, 5], &[5]]), 2, &what);
                let meaningful = if parameters > 0 { 3 } else { 1 };
                let of_input = Layer::InputBackward(prologue, order);
                assert_same_forms(&of_input, &with([&[parameters], &[parameters]]), meaningful, &what);
            }
        }
    }
}
