//! The settings and tensors of the loss, and its gradients.

use burn::backend::tensor::FloatTensor;
use burn::backend::tensor::IntTensor;
use burn::tensor::DType;

/// The settings of the loss that are not tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossOptions {
    /// The target whose rows do not count, -100 in torch. With `None` all rows count.
    pub(crate) ignore_index: Option<i64>,
    /// Probability that is taken from the target and spread over all classes, from 0 to 1.
    pub(crate) label_smoothing: f32,
    /// The way in which the losses of the rows are combined.
    pub(crate) reduction: Reduction,
}

/// The way in which the losses of all rows are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduction {
    /// The sum of the losses, divided by the sum of the weights of the rows that count. A row's weight is 1, or the product of its own
    /// weight and the weight of its target's class.
    #[default]
    Mean,
    /// The sum of the losses.
    Sum,
    /// The losses are not combined. The backward pass computes the logits once more, because a row's share of the loss is not known
    /// before.
    None,
}

/// The tensors of the loss. Missing ones have no elements.
#[derive(Clone, Debug)]
pub(crate) struct LossInputs<F, I> {
    /// `[rows, width]`.
    pub(crate) hidden: F,
    /// `[width, classes]`, in the dtype of `hidden`.
    pub(crate) weight: F,
    /// `[classes]` or missing, in the dtype of `hidden`.
    pub(crate) bias: F,
    /// `[rows]` in I64.
    pub(crate) targets: I,
    /// `[classes]` in f32, or missing.
    pub(crate) class_weights: F,
    /// `[rows]` in f32, or missing.
    pub(crate) row_weights: F,
}

/// The tensors of the loss on a backend.
pub(crate) type Inputs<B> = LossInputs<FloatTensor<B>, IntTensor<B>>;

/// The gradients that are wanted.
#[derive(Clone, Debug)]
pub(crate) struct LossGradients<T> {
    /// `[rows, width]`, in the [dtype](kept_dtype) that is kept.
    pub(crate) hidden: Option<T>,
    /// `[width, classes]` in f32.
    pub(crate) weight: Option<T>,
    /// `[classes]` in f32.
    pub(crate) bias: Option<T>,
}

/// The dtype in which the gradient of hidden rows of `dtype` is kept. For f16 it is f32, since the gradient of a mean is below the range
/// of f16 before a loss scale is applied.
pub(crate) fn kept_dtype(dtype: DType) -> DType {
    if dtype == DType::F16 { DType::F32 } else { dtype }
}
