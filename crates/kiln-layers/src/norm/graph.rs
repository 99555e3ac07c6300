//! Norms over the last dimension as an operation of burn's graph.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all};

use super::settings::{BACKWARD, FORWARD, NormSettings};

/// A norm over the last dimension. A missing bias has no elements. The gradients are computed from input, statistics, weight and gradient of
/// the output.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowNorm {
    Forward(NormSettings),
    /// The flags say which gradients are wanted. Others have no meaning.
    Backward(NormSettings, [bool; 3]),
}

impl Kernel for RowNorm {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::Backward(..) => &BACKWARD,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        let (Self::Forward(settings) | Self::Backward(settings, _)) = self;
        vec![i64::from(settings.centred)]
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward(_) => vec![inputs[0].clone(), statistics_like(&inputs[0].0)],
            Self::Backward(..) => [0, 2, 2].map(|input: usize| inputs[input].clone()).into(),
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match *self {
            Self::Forward(settings) => {
                let [x, weight, bias] = all(inputs);
                super::composed::forward::<B>(x, weight, bias, settings).into()
            }
            Self::Backward(settings, wanted) => {
                let [x, statistics, weight, gradient] = all(inputs);
                let unused = weight.clone();
                let gradients = super::composed::backward::<B>(x, statistics, weight, gradient, settings, wanted);
                gradients.map(|gradient| gradient.unwrap_or_else(|| unused.clone())).into()
            }
        }
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        let (x, weight) = (&inputs[0].0, &inputs[if matches!(self, Self::Forward(_)) { 1 } else { 2 }].0);
        let width = x.last().copied().unwrap_or(1);
        let has_values = x.num_elements() > 0 && weight.num_elements() == width;
        (has_values && super::cube::takes(device, width)).then_some(Self::launch)
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        match *self {
            Self::Forward(settings) => {
                let [x, weight, bias] = all(inputs);
                super::flex::forward(&x, &weight, &bias, settings).into()
            }
            Self::Backward(settings, wanted) => {
                let [x, statistics, weight, gradient] = all(inputs);
                let gradients = super::flex::backward(&x, &statistics, &weight, gradient, settings, wanted);
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
            Self::Backward(settings, _) => {
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
    all(B::run(&RowNorm::Backward(settings, wanted), vec![x, statistics, weight, gradient]))
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
        let made = row_norm_backward::<B>(saved, gradient, *self, [wanted[0], wanted[1], wanted[2]]);
        made.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
    }
}

/// Shape and dtype of the statistics of the rows of a tensor of shape `x`: mean and reciprocal deviation in f32, `[rows, 2]`.
pub(crate) fn statistics_like(x: &Shape) -> (Shape, DType) {
    let width = x.last().copied().unwrap_or(1).max(1);
    (Shape::new([x.num_elements() / width, 2]), DType::F32)
}
