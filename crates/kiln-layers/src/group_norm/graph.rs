//! Group norm as an operation of burn's graph.

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Operation, all};

use super::settings::{BACKWARD, FORWARD, GroupNormSettings};

/// A group norm. A missing parameter has no elements. The gradients are computed from input, statistics, weight and gradient of
/// the output.
#[derive(Clone, Copy, Debug)]
pub(super) enum GroupedNorm {
    Forward(GroupNormSettings),
    /// The flags say which gradients are wanted. Others have no meaning.
    Backward(GroupNormSettings, [bool; 3]),
}

impl Kernel for GroupedNorm {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::Backward(..) => &BACKWARD,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        let (Self::Forward(settings) | Self::Backward(settings, _)) = self;
        vec![settings.groups as i64]
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward(settings) => {
                vec![inputs[0].clone(), (Shape::new([inputs[0].0[0], settings.groups, 2]), DType::F32)]
            }
            Self::Backward(..) => [0, 2, 2].map(|input: usize| inputs[input].clone()).into(),
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match *self {
            Self::Forward(settings) => {
                let [x, weight, bias] = all(inputs);
                super::composed::forward::<B>(&x, &weight, &bias, settings).into()
            }
            Self::Backward(settings, wanted) => {
                let [x, statistics, weight, gradient] = all(inputs);
                let unused = weight.clone();
                let gradients = super::composed::backward::<B>(&x, &statistics, &weight, &gradient, settings, wanted);
                gradients.map(|gradient| gradient.unwrap_or_else(|| unused.clone())).into()
            }
        }
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        (inputs[0].0.num_elements() > 0 && super::cube::takes(device)).then_some(Self::launch)
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
impl GroupedNorm {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        match *self {
            Self::Forward(settings) => {
                let [x, weight, bias] = all(inputs);
                super::cube::forward(x, weight, bias, settings).into()
            }
            Self::Backward(settings, _) => super::cube::backward(all(inputs), settings).into(),
        }
    }
}

impl Operation for GroupNormSettings {
    const NAME: &'static str = "group norm";

    /// Input, statistics and weight.
    type Saved<B: KernelBackend> = [FloatTensor<B>; 3];

    fn forward<B: KernelBackend>(
        &self,
        inputs: Vec<FloatTensor<B>>,
        wanted: &[bool],
    ) -> Computed<B, [FloatTensor<B>; 3]> {
        let kept = wanted.contains(&true).then(|| (inputs[0].clone(), inputs[1].clone()));
        let [y, statistics] = all(B::run(&GroupedNorm::Forward(*self), inputs));
        Computed { outputs: vec![y], saved: kept.map(|(x, weight)| [x, statistics, weight]) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        [x, statistics, weight]: [FloatTensor<B>; 3],
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let inputs = vec![x, statistics, weight, gradient];
        let made = B::run(&GroupedNorm::Backward(*self, [wanted[0], wanted[1], wanted[2]]), inputs);
        made.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
    }
}
