//! Group norm as an operation of burn's graph.

use burn::backend::Backend;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use kiln_operations::{Computed, Cost, Kernel, Operation, Runs, all};

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

    fn composed<B: Backend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
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

impl Operation for GroupNormSettings {
    const NAME: &'static str = "group norm";

    fn forward<B: Runs>(&self, inputs: Vec<FloatTensor<B>>, tracked: bool) -> Computed<B> {
        let kept = if tracked { inputs[..2].to_vec() } else { vec![] };
        let [y, statistics] = all(B::run(&GroupedNorm::Forward(*self), inputs));
        let saved = match <[_; 2]>::try_from(kept) {
            Ok([x, weight]) => vec![x, statistics, weight],
            Err(_) => vec![],
        };
        Computed { outputs: vec![y], saved }
    }

    fn gradient<B: Runs>(
        &self,
        mut saved: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        saved.push(gradient);
        let made = B::run(&GroupedNorm::Backward(*self, [wanted[0], wanted[1], wanted[2]]), saved);
        made.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
    }
}
