//! Norms over the last dimension as an operation of burn's graph.

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, InOrder, Kernel, KernelBackend, Onto, Operation, all};

use super::settings::{BACKWARD, BACKWARD_ONTO, FORWARD, NormSettings};
use crate::composed::cast;
use crate::order::{Order, sum_or_zeros};

/// A norm over the last dimension. A missing bias has no elements. The gradients are computed from input, statistics, weight and gradient of
/// the output.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowNorm {
    Forward(NormSettings),
    /// The flags say which gradients are wanted. Others have no meaning. The sums of weight and bias follow the inputs, if there are any.
    Backward(NormSettings, [bool; 3], Order),
}

impl Kernel for RowNorm {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::Backward(_, _, Order::Onto) => &BACKWARD_ONTO,
            Self::Backward(..) => &BACKWARD,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        match self {
            Self::Forward(settings) => vec![i64::from(settings.centred)],
            Self::Backward(settings, _, order) => vec![i64::from(settings.centred), order.scalar()],
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward(_) => vec![inputs[0].clone(), statistics_like(&inputs[0].0)],
            Self::Backward(_, _, order) => {
                let parameter = (inputs[2].0.clone(), order.dtype(inputs[2].1));
                vec![inputs[0].clone(), parameter.clone(), parameter]
            }
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match *self {
            Self::Forward(settings) => {
                let [x, weight, bias] = all(inputs);
                super::composed::forward::<B>(x, weight, bias, settings).into()
            }
            Self::Backward(settings, wanted, order) => {
                let mut inputs = inputs;
                let sums = inputs.split_off(4);
                let [x, statistics, weight, gradient] = all(inputs);
                let unused = weight.clone();
                let gradients = super::composed::backward::<B>(x, statistics, weight, gradient, settings, wanted);
                let mut gradients = gradients.map(|gradient| gradient.unwrap_or_else(|| unused.clone()));
                let dtype = order.dtype(unused.dtype());
                gradients[1..].iter_mut().for_each(|gradient| *gradient = cast::<B>(gradient.clone(), dtype));
                if order == Order::Onto {
                    for (gradient, sum) in gradients[1..].iter_mut().zip(sums) {
                        *gradient = B::float_add(sum, gradient.clone());
                    }
                }
                gradients.into()
            }
        }
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        let (x, weight) = (&inputs[0].0, &inputs[if matches!(self, Self::Forward(_)) { 1 } else { 2 }].0);
        let width = x.last().copied().unwrap_or(1);
        let has_values = x.num_elements() > 0 && weight.num_elements() == width;
        let has_values = has_values && !matches!(self, Self::Backward(_, _, Order::Onto));
        (has_values && super::cube::takes(device, width)).then_some(Self::launch)
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        match *self {
            Self::Forward(settings) => {
                let [x, weight, bias] = all(inputs);
                super::flex::forward(&x, &weight, &bias, settings).into()
            }
            Self::Backward(settings, wanted, order) => {
                let mut inputs = inputs;
                let sums = inputs.split_off(4);
                let [x, statistics, weight, gradient] = all(inputs);
                let sums = match order {
                    Order::Any => None,
                    Order::Rows => Some([(); 2].map(|()| vec![0.0; weight.shape()[0]])),
                    Order::Onto => Some(all::<_, 2>(sums).map(|sum| kiln_operations::cpu::stored::to_f32(&sum))),
                };
                let gradients = super::flex::backward(&x, &statistics, &weight, gradient, settings, wanted, sums);
                gradients.map(|gradient| gradient.unwrap_or_else(|| weight.clone())).into()
            }
        }
    }
}

#[cfg(feature = "cube")]
impl RowNorm {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        match *self {
            Self::Forward(settings) => {
                let [x, weight, bias] = all(inputs);
                super::cube::forward(x, weight, bias, settings).into()
            }
            Self::Backward(settings, ..) => {
                let [x, statistics, weight, gradient] = all(inputs);
                super::cube::backward(x, statistics, weight, gradient, settings).into()
            }
        }
    }
}

/// The output, and the statistics of each row.
pub(crate) fn row_norm<B: KernelBackend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    settings: NormSettings,
) -> [FloatTensor<B>; 2] {
    all(B::run(&RowNorm::Forward(settings), vec![x, weight, bias]))
}

/// The gradients of input, weight and bias. Those that are not `wanted` have no meaning.
pub(crate) fn row_norm_backward<B: KernelBackend>(
    [x, statistics, weight]: [FloatTensor<B>; 3],
    gradient: FloatTensor<B>,
    settings: NormSettings,
    wanted: [bool; 3],
) -> [FloatTensor<B>; 3] {
    all(B::run(&RowNorm::Backward(settings, wanted, Order::Any), vec![x, statistics, weight, gradient]))
}

impl Operation for NormSettings {
    const NAME: &'static str = "norm";

    /// Input, statistics and weight.
    type Saved<B: KernelBackend> = [FloatTensor<B>; 3];

    fn forward<B: KernelBackend>(
        &self,
        inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, [FloatTensor<B>; 3]> {
        let kept = wanted.contains(&true).then(|| (inputs[0].clone(), inputs[1].clone()));
        let [x, weight, bias] = all(inputs);
        let [y, statistics] = row_norm::<B>(x, weight, bias, *self);
        Computed { outputs: vec![y], saved: kept.map(|(x, weight)| [x, statistics, weight]) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        saved: [FloatTensor<B>; 3],
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        row_norm_gradients::<B>(saved, gradient, *self, all(wanted.to_vec()), None).into()
    }

    fn in_order(&self) -> InOrder {
        InOrder::Backward(&[1, 2])
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        saved: [FloatTensor<B>; 3],
        gradient: FloatTensor<B>,
        wanted: &[bool],
        sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        row_norm_gradients::<B>(saved, gradient, *self, all(wanted.to_vec()), Some(all(sums))).into()
    }
}

/// The gradients of input, weight and bias, if they are wanted. With `sums` rows are added in their order, to the sums that are there.
pub(crate) fn row_norm_gradients<B: KernelBackend>(
    saved: [FloatTensor<B>; 3],
    gradient: FloatTensor<B>,
    settings: NormSettings,
    wanted: [bool; 3],
    sums: Option<[Onto<FloatTensor<B>>; 3]>,
) -> [Option<FloatTensor<B>>; 3] {
    let made = match sums {
        None => row_norm_backward::<B>(saved, gradient, settings, wanted),
        Some(sums) => {
            let (order, dtype, apart) = (Order::of(&sums), saved[2].dtype(), sums.each_ref().map(Onto::is_apart));
            let mut inputs = saved.to_vec();
            inputs.push(gradient);
            if order == Order::Onto {
                let (shape, device) = (inputs[2].shape(), inputs[2].device());
                inputs.extend(sums.into_iter().skip(1).map(|sum| sum_or_zeros::<B>(sum, shape.clone(), &device)));
            }
            let mut made: [FloatTensor<B>; 3] = all(B::run(&RowNorm::Backward(settings, wanted, order), inputs));
            for input in [1, 2].into_iter().filter(|input| apart[*input]) {
                made[input] = cast::<B>(made[input].clone(), dtype);
            }
            made
        }
    };
    let [of_x, of_weight, of_bias] = made;
    [wanted[0].then_some(of_x), wanted[1].then_some(of_weight), wanted[2].then_some(of_bias)]
}

/// Shape and dtype of the statistics of the rows of a tensor of shape `x`: mean and reciprocal deviation in f32, `[rows, 2]`.
pub(crate) fn statistics_like(x: &Shape) -> (Shape, DType) {
    let width = x.last().copied().unwrap_or(1).max(1);
    (Shape::new([x.num_elements() / width, 2]), DType::F32)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::{DType, NormSettings, Order, RowNorm, row_norm};
    use crate::composed::tests::{DTYPES, assert_same_forms, numbers};

    #[test]
    fn composed_as_the_kernels_in_any_order_of_sums() {
        let settings = NormSettings { epsilon: 1e-5, centred: true };
        for (dtype, order) in
            DTYPES.into_iter().flat_map(|dtype| [Order::Any, Order::Rows, Order::Onto].map(|order| (dtype, order)))
        {
            let (x, gradient) = (numbers([9, 7], 1, 3.0, dtype), numbers([9, 7], 2, 1.0, dtype));
            let [weight, bias] = [3, 4].map(|seed| numbers([7], seed, 1.0, dtype));
            let [_, statistics] = row_norm::<burn::backend::Flex>(x.clone(), weight.clone(), bias, settings);
            let sums = (order == Order::Onto).then(|| [5, 6].map(|seed| numbers([7], seed, 1.0, DType::F32)));
            let given: Vec<_> =
                [x, statistics, weight, gradient].into_iter().chain(sums.into_iter().flatten()).collect();
            assert_same_forms(&RowNorm::Backward(settings, [true; 3], order), &given, 3, &format!("{dtype:?}"));
        }
    }
}
