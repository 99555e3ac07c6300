//! The cross-entropy of a linear output layer. The logits of the whole batch are never in memory.

mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod flex_parts;
mod graph;
mod parts;
#[cfg(feature = "flex")]
mod row;
#[cfg(feature = "flex")]
mod scale;
mod settings;
#[cfg(feature = "flex")]
mod weight;

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_operations::{adds_in_order, run};

use crate::check::{main_input, same_dtype, same_size, supported};
use crate::error::Error;
use crate::row_weight::RowWeight;
use parts::LossInParts;

pub(crate) use settings::LossOptions;
pub use settings::Reduction;

/// The cross-entropy of `softmax(hidden weight + bias)`, without the logits of the whole batch (Wijmans et al. 2024).
///
/// The logits of 256 rows are in memory at a time, or of more rows if they fit in 2 MiB. Their gradients are computed together with them
/// in the forward pass, so that nothing is computed twice.
///
/// It keeps gradients for the backward pass, of those tensors that need one: the gradient of `hidden` in its dtype (for f16 in f32), and
/// the gradients of `weight` and `bias` in f32. It keeps no logits. A loss scale is applied to the kept gradients in f32, so that f16
/// gradients do not underflow before it. Without a reduction, the inputs are kept instead. If `hidden` and `weight` are bf16, the gradients of
/// the logits are rounded to bf16 before they are multiplied by them; sums are f32.
///
/// ```
/// use burn::tensor::{Device, Distribution, Int, Tensor};
/// use kiln_layers::LinearCrossEntropy;
///
/// let device = Device::flex().autodiff();
/// let hidden = Tensor::<2>::random([16, 8], Distribution::Default, &device).require_grad();
/// let weight = Tensor::<2>::random([8, 100], Distribution::Default, &device).require_grad();
/// let targets = Tensor::<1, Int>::arange(0..16, &device);
/// let loss = LinearCrossEntropy::new().forward(hidden.clone(), weight, None, targets)?;
/// let gradients = loss.backward();
/// assert!(hidden.grad(&gradients).is_some());
/// # Ok::<(), kiln_layers::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LinearCrossEntropy {
    options: LossOptions,
    class_weights: Option<Tensor<1>>,
}

impl Default for LinearCrossEntropy {
    fn default() -> Self {
        Self::new()
    }
}

impl LinearCrossEntropy {
    /// The loss with its defaults: the mean over all rows, without label smoothing and class weights.
    #[must_use]
    pub fn new() -> Self {
        let options = LossOptions {
            ignore_index: None,
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
            by_class: false,
            weighted: false,
        };
        Self { options, class_weights: None }
    }

    /// Sets a target whose rows do not count: they add nothing to the loss and nothing is computed for them. By default all rows count.
    #[must_use]
    pub fn with_ignore_index(mut self, target: i64) -> Self {
        self.options.ignore_index = Some(target);
        self
    }

    /// Sets the probability, from 0 to 1, that is taken from the target and spread over all classes (Szegedy et al. 2016). Default: 0.
    #[must_use]
    pub fn with_label_smoothing(mut self, smoothing: f32) -> Self {
        self.options.label_smoothing = smoothing;
        self
    }

    /// Sets how the losses of all rows are combined. The default is their mean.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.options.reduction = reduction;
        self
    }

    /// Sets a weight for each class, `[classes]`, as in torch: each class's share of a row's loss is multiplied by its weight, and the
    /// mean divides by the sum of the targets' weights. No gradient flows to the weights. The default is 1 for all.
    #[must_use]
    pub fn with_class_weights(mut self, weights: Tensor<1>) -> Self {
        self.class_weights = Some(weights);
        self
    }

    /// Computes the loss in f32: `[1]`, or `[rows]` without a reduction.
    ///
    /// `hidden` is `[rows, width]`, `weight` is `[width, classes]`, `bias` is `[classes]`, and `targets` are `[rows]` of any integer
    /// dtype. The transposed view of an embedding's weights can be given as `weight` without a copy. A row whose target is ignored or not
    /// below `classes` does not count (torch refuses the latter). The mean of no rows is NaN, as in torch; its gradients are 0.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::DType`] when `hidden`, `weight` and `bias` differ, [`Error::UnsupportedDevice`],
    /// [`Error::UnsupportedDType`], and [`Error::InvalidSetting`] for a label smoothing out of range.
    pub fn forward(
        &self,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
    ) -> Result<Tensor<1>, Error> {
        self.compute(hidden, weight, bias, targets, None)
    }

    /// Computes the [loss](Self::forward) with the weights of an embedding as the output layer: `[classes, width]`, a class in each row, in a
    /// dtype of their own. They are cast to the dtype of `hidden`.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    pub fn forward_by_class(
        &self,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        targets: Tensor<1, Int>,
    ) -> Result<Tensor<1>, Error> {
        let ([rows, width], [classes, input]) = (hidden.dims(), weight.dims());
        main_input("the hidden rows", &hidden)?;
        supported("the weight", weight.dtype())?;
        same_size(("the width of the hidden rows", width), ("the width of the weight", input))?;
        same_size(("the number of hidden rows", rows), ("the number of targets", targets.dims()[0]))?;
        self.check_settings(classes)?;
        if !adds_in_order() {
            // burn's own operations turn the gradient back, so that they are fused with its sum with that of the embedding.
            let weight = weight.cast(hidden.dtype()).transpose();
            return self.forward(hidden, weight, None, targets);
        }
        let options = LossOptions { by_class: true, ..self.options };
        Ok(self.run(options, hidden, weight, None, targets, None))
    }

    /// Computes the [loss](Self::forward) with a weight for each row, `[rows]`, by which the row's loss is multiplied, for example for
    /// the tokens of a sequence. The mean divides by the sum of the weights of the rows that count. A row of weight 0 does not count. No
    /// gradient flows to the weights.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward), and [`Error::Size`] for another number of weights than of rows.
    pub fn forward_weighted(
        &self,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
        row_weights: Tensor<1>,
    ) -> Result<Tensor<1>, Error> {
        self.compute(hidden, weight, bias, targets, Some(row_weights))
    }

    /// Computes the [loss](Self::forward) with a weight that is in memory some rows at a time: `[classes, width]`, a class in each row, and
    /// cast to the dtype of `hidden`. Loss and gradients have the bits of those with the weight in memory in that layout. The logits are
    /// computed once more in the backward pass.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward), and [`Error::InvalidSetting`] without a reduction.
    pub fn forward_by_rows(
        &self,
        hidden: Tensor<2>,
        weight: &RowWeight,
        targets: Tensor<1, Int>,
    ) -> Result<Tensor<1>, Error> {
        let ([rows, width], [classes, input]) = (hidden.dims(), weight.leaf.dims());
        main_input("the hidden rows", &hidden)?;
        same_size(("the width of the hidden rows", width), ("the width of the weight", input))?;
        same_size(("the number of hidden rows", rows), ("the number of targets", targets.dims()[0]))?;
        self.check_settings(classes)?;
        if self.options.reduction == Reduction::None {
            let (name, value) = ("reduction", "none".into());
            return Err(Error::InvalidSetting { name, value, expected: "mean or sum, for a weight in parts" });
        }
        let operation = LossInParts { options: self.options, parts: weight.parts.clone() };
        let inputs = vec![
            hidden.into_dispatch(),
            weight.leaf.clone().into_dispatch(),
            targets.cast(DType::I64).into_dispatch(),
            given(self.class_weights.clone(), DType::F32, &weight.leaf.device()),
        ];
        Ok(Tensor::from_dispatch(run(operation, inputs).remove(0)))
    }

    /// Checks the settings for a number of classes.
    fn check_settings(&self, classes: usize) -> Result<(), Error> {
        if let Some(weights) = &self.class_weights {
            let classes = ("the number of classes of the weight", classes);
            same_size(classes, ("the number of class weights", weights.dims()[0]))?;
            supported("the class weights", weights.dtype())?;
        }
        let smoothing = self.options.label_smoothing;
        if !(0.0..=1.0).contains(&smoothing) {
            let value = smoothing.to_string();
            return Err(Error::InvalidSetting { name: "label smoothing", value, expected: "a number from 0 to 1" });
        }
        Ok(())
    }

    fn compute(
        &self,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
        row_weights: Option<Tensor<1>>,
    ) -> Result<Tensor<1>, Error> {
        let ([rows, width], [input, classes]) = (hidden.dims(), weight.dims());
        main_input("the hidden rows", &hidden)?;
        same_dtype(("the hidden rows", hidden.dtype()), ("the weight", weight.dtype()))?;
        same_size(("the width of the hidden rows", width), ("the number of rows of the weight", input))?;
        same_size(("the number of hidden rows", rows), ("the number of targets", targets.dims()[0]))?;
        self.check_settings(classes)?;
        if let Some(bias) = &bias {
            let classes = ("the number of classes of the weight", classes);
            same_size(classes, ("the length of the bias", bias.dims()[0]))?;
            same_dtype(("the weight", weight.dtype()), ("the bias", bias.dtype()))?;
        }
        if let Some(weights) = &row_weights {
            same_size(("the number of hidden rows", rows), ("the number of row weights", weights.dims()[0]))?;
            supported("the row weights", weights.dtype())?;
        }
        Ok(self.run(self.options, hidden, weight, bias, targets, row_weights))
    }

    fn run(
        &self,
        options: LossOptions,
        hidden: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
        row_weights: Option<Tensor<1>>,
    ) -> Tensor<1> {
        let options = LossOptions { weighted: self.class_weights.is_some() || row_weights.is_some(), ..options };
        let (device, dtype) = (weight.device(), hidden.dtype());
        let inputs = vec![
            hidden.into_dispatch(),
            weight.into_dispatch(),
            given(bias, dtype, &device),
            targets.cast(DType::I64).into_dispatch(),
            given(self.class_weights.clone(), DType::F32, &device),
            given(row_weights, DType::F32, &device),
        ];
        Tensor::from_dispatch(run(options, inputs).remove(0))
    }
}

/// A tensor in a dtype, or one without elements if it is missing.
fn given(tensor: Option<Tensor<1>>, dtype: DType, device: &Device) -> DispatchTensor {
    match tensor {
        Some(tensor) => tensor.cast(dtype).into_dispatch(),
        None => Tensor::<1>::empty([0], (device, dtype)).into_dispatch(),
    }
}
