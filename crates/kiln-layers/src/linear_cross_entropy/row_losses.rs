//! The losses of rows of logits, and the gradients of the logits, as a computation inside of the loss of a linear layer on devices without
//! kernels for the whole operation.

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Cost, Kernel, KernelBackend, all};

use crate::composed::{Wide, full};

/// The losses of rows times their weights, `[rows, 1]` in f32, and the gradient of the logits times `scales` in a dtype, if it is wanted.
///
/// A row's loss is the sum over the classes of q (log Σ exp(logits) - logit), where q is the weight of the class times its probability
/// after label smoothing; its gradient is Σq softmax(logits) - q. The inputs are those of [`RowInputs`].
#[derive(Clone, Copy, Debug)]
pub(super) struct RowLosses {
    /// The part of the target probability that each class gets, whichever class the target is.
    pub(super) on_each: f32,
    /// The part of the target probability that only the target gets.
    pub(super) on_target: f32,
    /// The dtype of the gradient.
    pub(super) gradient: Option<DType>,
}

/// The tensors of the losses of rows. Missing ones have no elements.
pub(super) struct RowInputs<F, I> {
    /// `[rows, classes]` in f32.
    pub(super) logits: F,
    /// `[classes]`, or missing.
    pub(super) bias: F,
    /// `[classes]` in f32, or missing.
    pub(super) class_weights: F,
    /// The class of each row, 0 for rows that do not count, `[rows, 1]`.
    pub(super) targets: I,
    /// The weight of each row, 0 for rows that do not count, `[rows, 1]` in f32.
    pub(super) weights: F,
    /// The weight of the target's class, `[rows, 1]` in f32.
    pub(super) of_class: F,
    /// The divisor of the gradient, `[1]` in f32.
    pub(super) divisor: F,
}

static COST: Cost = Cost::new("kiln::row_losses");

impl Kernel for RowLosses {
    fn cost(&self) -> &'static Cost {
        &COST
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let logits = inputs[0].0.clone();
        let losses = (Shape::new([logits[0], 1]), DType::F32);
        [losses].into_iter().chain(self.gradient.map(|dtype| (logits, dtype))).collect()
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [logits, bias, class_weights, targets, weights, of_class, divisor] = all(inputs);
        let inputs = RowInputs { logits, bias, class_weights, targets: B::int(targets), weights, of_class, divisor };
        let (losses, gradient) = self.losses::<B>(inputs);
        [losses].into_iter().chain(gradient).collect()
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, _: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        super::cube::takes(device).then_some(Self::launch)
    }
}

#[cfg(feature = "cube")]
impl RowLosses {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        let [logits, bias, class_weights, targets, weights, of_class, divisor] = all(inputs);
        let inputs = RowInputs { logits, bias, class_weights, targets, weights, of_class, divisor };
        let (losses, gradient) = super::cube::row_losses(*self, inputs);
        [losses].into_iter().chain(gradient).collect()
    }
}

impl RowLosses {
    /// The losses, and the gradient if it is wanted.
    pub(super) fn run<B: KernelBackend>(
        &self,
        inputs: RowInputs<FloatTensor<B>, IntTensor<B>>,
    ) -> (FloatTensor<B>, Option<FloatTensor<B>>) {
        let RowInputs { logits, bias, class_weights, targets, weights, of_class, divisor } = inputs;
        let inputs = vec![logits, bias, class_weights, B::of_int(targets), weights, of_class, divisor];
        let mut outputs = B::run(self, inputs).into_iter();
        let losses = outputs.next().unwrap_or_else(|| unreachable!("the first output is the losses"));
        (losses, outputs.next())
    }

    fn losses<B: KernelBackend>(
        &self,
        inputs: RowInputs<FloatTensor<B>, IntTensor<B>>,
    ) -> (FloatTensor<B>, Option<FloatTensor<B>>) {
        let classes = inputs.logits.shape()[1];
        let given =
            |values: &FloatTensor<B>| (values.shape()[0] > 0).then(|| Wide::<B>::of(values).reshape([1, classes]));
        let (logits, class_weights) = (Wide::<B>::of(&inputs.logits), given(&inputs.class_weights));
        let weighted = |values: Wide<B>| match &class_weights {
            Some(weights) => values * weights.clone(),
            None => values,
        };
        let logits = match given(&inputs.bias) {
            Some(bias) => logits + bias,
            None => logits,
        };
        let weights = Wide::<B>::of(&inputs.weights);
        let ignored = weights.clone().equal(0.0);
        let device = logits.device();
        let ones = || Wide::<B>::of(&full::<B>(Shape::new([1, classes]), 1.0, &device, DType::F32));
        // The largest logit is subtracted, so that a small loss of large logits is not lost to rounding.
        let largest = logits.clone().largest(1);
        let logits = logits - largest;
        let on_target = Wide::<B>::of(&inputs.of_class) * self.on_target;
        let mut mass = on_target.clone();
        let mut expected = logits.clone().at(inputs.targets.clone()) * on_target.clone();
        if self.on_each > 0.0 {
            mass = mass + weighted(ones()).sum(&[1]) * self.on_each;
            expected = expected + weighted(logits.clone()).sum(&[1]) * self.on_each;
        }
        let exponentials = logits.exp();
        let sums = exponentials.clone().sum(&[1]);
        let losses = (mass.clone() * sums.clone().ln() - expected).fill(ignored.clone(), 0.0) * weights.clone();
        let gradient = self.gradient.map(|dtype| {
            let scale = weights / Wide::<B>::of(&inputs.divisor).reshape([1, 1]);
            let mut gradient = exponentials * (mass / sums * scale.clone());
            if self.on_each > 0.0 {
                gradient = gradient - weighted(ones()) * (scale.clone() * self.on_each);
            }
            gradient.add_at(inputs.targets, -(on_target * scale)).fill(ignored, 0.0).narrow(dtype)
        });
        (losses.narrow(DType::F32), gradient)
    }
}
