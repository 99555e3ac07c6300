//! The loss of a linear output layer in a backend's own operations. Only the logits of a chunk of rows are in memory at a time.
//!
//! Peak memory in addition to inputs and outputs, in f32: two tensors of `chunk classes` values, at most 2 [`LOGITS`] bytes (more only if
//! one row has more); rows and their gradients, `2 chunk width`; for 16-bit weights their copy, `width classes`; with the weight's
//! gradient and more than one chunk a product, `width classes`, in addition to the sum that is the output; some values for each row.
//!
//! Multiply-adds: `rows width classes` for the loss, and as many for each of the gradients of hidden rows and weight. Rows that do not
//! count are computed as well.

use std::ops::Range;

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_or_init_device_settings};
use burn::tensor::{DType, Shape, Slice};

use super::settings::{Inputs, LOGITS, LossGradients, kept_dtype};
use super::{LossOptions, Reduction};
use crate::composed::{Wide, bools, full, put, slice};

/// The loss in f32: `[1]`, or `[rows]` without a reduction.
pub(super) fn loss<B: Backend>(inputs: Inputs<B>, options: LossOptions) -> FloatTensor<B> {
    loss_and_gradients::<B>(inputs, options, [false; 3]).0
}

/// The loss, and its wanted gradients: of the hidden rows in the dtype that is kept, of weight and bias in f32.
#[allow(clippy::single_range_in_vec_init, reason = "a range of the first dimension")]
pub(super) fn loss_and_gradients<B: Backend>(
    inputs: Inputs<B>,
    options: LossOptions,
    wanted: [bool; 3],
) -> (FloatTensor<B>, LossGradients<FloatTensor<B>>) {
    let (hidden, kept, device) = (&inputs.hidden, kept_dtype(inputs.hidden.dtype()), inputs.hidden.device());
    let (rows, classes) = (hidden.shape()[0], inputs.weight.shape()[1]);
    let mut losses = full::<B>(Shape::new([rows]), 0.0, &device, DType::F32);
    let mut of_hidden = wanted[0].then(|| full::<B>(hidden.shape(), 0.0, &device, kept));
    let (mut of_weight, mut of_bias) = (None, None);
    let mut total = Wide::zeros(Shape::new([1]), &device);
    if rows * classes > 0 {
        let layer = Layer::<B>::new(&inputs, options);
        let all = Rows::<B>::new(&inputs, &layer, options.ignore_index);
        total = all.total();
        let size = (LOGITS / (4 * classes)).clamp(1, rows);
        for first in (0..rows).step_by(size) {
            let chunk = [first..(first + size).min(rows)];
            let hidden = Wide::<B>::of(&slice::<B>(hidden, &chunk));
            let share = (options.reduction == Reduction::Mean).then(|| total.clone());
            let (of_rows, gradient) = layer.losses(hidden.clone(), all.chunk(&chunk[0]), share, wanted.contains(&true));
            losses = put::<B>(losses, &chunk, of_rows.reshape([chunk[0].len()]).narrow(DType::F32));
            let Some(gradient) = gradient else { continue };
            of_hidden = of_hidden.map(|sum| {
                let rows = gradient.clone().matmul(layer.weight.clone().transpose());
                put::<B>(sum, &chunk, rows.narrow(kept))
            });
            if wanted[2] {
                of_bias = add(of_bias, gradient.clone().sum(&[0]).reshape([classes]));
            }
            if wanted[1] {
                of_weight = add(of_weight, hidden.transpose().matmul(gradient));
            }
        }
    }
    let loss = match options.reduction {
        Reduction::None => losses,
        Reduction::Sum => sum::<B>(&losses).narrow(DType::F32),
        Reduction::Mean => (sum::<B>(&losses) / total).narrow(DType::F32),
    };
    let or_zeros = |sum: Option<Wide<B>>, like: &FloatTensor<B>| {
        sum.unwrap_or_else(|| Wide::zeros(like.shape(), &device)).narrow(DType::F32)
    };
    let gradients = LossGradients {
        hidden: of_hidden,
        weight: wanted[1].then(|| or_zeros(of_weight, &inputs.weight)),
        bias: wanted[2].then(|| or_zeros(of_bias, &inputs.bias)),
    };
    (loss, gradients)
}

fn add<B: Backend>(sum: Option<Wide<B>>, next: Wide<B>) -> Option<Wide<B>> {
    Some(match sum {
        Some(sum) => sum + next,
        None => next,
    })
}

/// The sum of a vector, `[1]`.
fn sum<B: Backend>(values: &FloatTensor<B>) -> Wide<B> {
    match values.shape()[0] {
        0 => Wide::zeros(Shape::new([1]), &values.device()),
        _ => Wide::of(values).sum(&[0]),
    }
}

/// Values of rows that do not depend on their logits, each `[rows, 1]`.
struct Rows<B: Backend> {
    /// The class, 0 for rows that do not count.
    targets: IntTensor<B>,
    /// Set for rows that do not count.
    ignored: BoolTensor<B>,
    /// The row's own weight, 0 for rows that do not count.
    weights: Wide<B>,
    /// The weight of the target's class.
    of_class: Wide<B>,
}

impl<B: Backend> Rows<B> {
    fn new(inputs: &Inputs<B>, layer: &Layer<B>, ignore_index: Option<i64>) -> Self {
        let (rows, classes, device) = (inputs.hidden.shape()[0], inputs.weight.shape()[1], inputs.hidden.device());
        let (ints, bools) = (get_or_init_device_settings::<B>(&device).int_dtype, bools::<B>(&device));
        let column = Shape::new([rows, 1]);
        let ones = || Wide::<B>::of(&full::<B>(column.clone(), 1.0, &device, DType::F32));
        let targets = B::int_reshape(B::int_cast(inputs.targets.clone(), ints), column.clone());
        let below = B::int_lower_elem(targets.clone(), 0i64.into(), bools);
        let above = B::int_greater_equal_elem(targets.clone(), (classes as i64).into(), bools);
        let mut ignored = B::bool_or(below, above);
        // Other targets to ignore are not classes, so their rows do not count anyway.
        if let Some(class) = ignore_index.filter(|class| (0..classes as i64).contains(class)) {
            ignored = B::bool_or(ignored, B::int_equal_elem(targets.clone(), class.into(), bools));
        }
        let mut weights = ones();
        if inputs.row_weights.shape()[0] > 0 {
            weights = Wide::of(&inputs.row_weights).reshape([rows, 1]);
            ignored = B::bool_or(ignored, weights.clone().equal(0.0));
        }
        let targets = B::int_mask_fill(targets, ignored.clone(), 0i64.into());
        let of_class = match &layer.class_weights {
            Some(weights) => {
                let indices = B::int_reshape(targets.clone(), Shape::new([rows]));
                weights.clone().reshape([classes]).select(indices).reshape([rows, 1])
            }
            None => ones(),
        };
        Self { targets, weights: weights.fill(ignored.clone(), 0.0), ignored, of_class }
    }

    /// The divisor of the sum of the losses for their mean, `[1]`.
    fn total(&self) -> Wide<B> {
        (self.weights.clone() * self.of_class.clone()).sum(&[0]).reshape([1])
    }

    fn chunk(&self, range: &Range<usize>) -> Self {
        let ranges = [Slice::from(range.clone()), Slice::from(0..1)];
        Self {
            targets: B::int_slice(self.targets.clone(), &ranges),
            ignored: B::bool_slice(self.ignored.clone(), &ranges),
            weights: self.weights.slice(std::slice::from_ref(range)),
            of_class: self.of_class.slice(std::slice::from_ref(range)),
        }
    }
}

/// Values that all rows share.
struct Layer<B: Backend> {
    weight: Wide<B>,
    /// `[1, classes]`.
    bias: Option<Wide<B>>,
    /// `[1, classes]`.
    class_weights: Option<Wide<B>>,
    /// The part of the target probability that each class gets, whichever class the target is.
    on_each: f32,
    /// The part of the target probability that only the target gets.
    on_target: f32,
}

impl<B: Backend> Layer<B> {
    fn new(inputs: &Inputs<B>, options: LossOptions) -> Self {
        let classes = inputs.weight.shape()[1];
        let given =
            |values: &FloatTensor<B>| (values.shape()[0] > 0).then(|| Wide::<B>::of(values).reshape([1, classes]));
        Self {
            weight: Wide::of(&inputs.weight),
            bias: given(&inputs.bias),
            class_weights: given(&inputs.class_weights),
            on_each: options.label_smoothing / classes as f32,
            on_target: 1.0 - options.label_smoothing,
        }
    }

    /// Multiplies the values of each class by its weight.
    fn weighted(&self, values: Wide<B>) -> Wide<B> {
        match &self.class_weights {
            Some(weights) => values * weights.clone(),
            None => values,
        }
    }

    /// The losses of rows, `[rows, 1]`, times their weights, and the gradient of the logits if it is `wanted`, divided by `total`.
    ///
    /// A row's loss is the sum over the classes of q (log Σ exp(logits) - logit), where q is the weight of the class times its
    /// probability after label smoothing; its gradient is Σq softmax(logits) - q.
    fn losses(
        &self,
        hidden: Wide<B>,
        rows: Rows<B>,
        total: Option<Wide<B>>,
        wanted: bool,
    ) -> (Wide<B>, Option<Wide<B>>) {
        let logits = hidden.matmul(self.weight.clone());
        let logits = match &self.bias {
            Some(bias) => logits + bias.clone(),
            None => logits,
        };
        let (device, shape) = (logits.device(), logits.shape());
        let ones = || Wide::<B>::of(&full::<B>(Shape::new([1, shape[1]]), 1.0, &device, DType::F32));
        // The largest logit is subtracted, so that a small loss of large logits is not lost to rounding.
        let largest = logits.clone().largest(1);
        let logits = logits - largest;
        let on_target = rows.of_class * self.on_target;
        let mut mass = on_target.clone();
        let mut expected = logits.clone().at(rows.targets.clone()) * on_target.clone();
        if self.on_each > 0.0 {
            mass = mass + self.weighted(ones()).sum(&[1]) * self.on_each;
            expected = expected + self.weighted(logits.clone()).sum(&[1]) * self.on_each;
        }
        let exponentials = logits.exp();
        let sums = exponentials.clone().sum(&[1]);
        let losses = (mass.clone() * sums.clone().ln() - expected).fill(rows.ignored.clone(), 0.0);
        let gradient = wanted.then(|| {
            let scale = match total {
                Some(total) => rows.weights.clone() / total.reshape([1, 1]),
                None => rows.weights.clone(),
            };
            let mut gradient = exponentials * (mass / sums * scale.clone());
            if self.on_each > 0.0 {
                gradient = gradient - self.weighted(ones()) * (scale.clone() * self.on_each);
            }
            gradient.add_at(rows.targets, -(on_target * scale)).fill(rows.ignored, 0.0)
        });
        (losses * rows.weights, gradient)
    }
}

/// `gradient * factor` in `dtype`, with a `factor` of one element.
pub(super) fn scaled<B: Backend>(gradient: FloatTensor<B>, factor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    let shape = gradient.shape();
    if shape.num_elements() == 0 {
        return full::<B>(shape, 0.0, &gradient.device(), dtype);
    }
    let factor = Wide::<B>::of(&B::float_reshape(factor, Shape::from(vec![1; shape.num_dims()])));
    (Wide::<B>::of(&gradient) * factor).narrow(dtype)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use burn::backend::flex::{FlexTensor, Layout};
    use burn::tensor::{Bytes, DType, Shape};

    use super::{loss, loss_and_gradients, scaled};
    use crate::composed::tests::{DTYPES, assert_close, assert_close_in, numbers};
    use crate::linear_cross_entropy::settings::Inputs;
    use crate::linear_cross_entropy::{LossOptions, Reduction};
    use crate::linear_cross_entropy::{flex, scale};

    /// Targets within `classes`, except one that is ignored and one that is out of range.
    fn targets(rows: usize, classes: usize) -> FlexTensor {
        let target = |row: usize| match row {
            3 => -100,
            4 => classes as i64,
            _ => (row * 5 % classes) as i64,
        };
        let values: Vec<i64> = (0..rows).map(target).collect();
        FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(Shape::new([rows])), DType::I64)
    }

    #[test]
    fn as_the_kernels() {
        for dtype in DTYPES {
            for (rows, width, classes, extras) in
                [(0, 3, 5, true), (1, 1, 1, false), (13, 7, 29, true), (5, 8, 3, false)]
            {
                let length = |length| if extras { length } else { 0 };
                let inputs: Inputs<Flex> = Inputs::<Flex> {
                    hidden: numbers([rows, width], 1, 2.0, dtype),
                    weight: numbers([width, classes], 2, 2.0, dtype),
                    bias: numbers([length(classes)], 3, 1.0, dtype),
                    targets: targets(rows, classes),
                    class_weights: numbers([length(classes)], 4, 1.0, DType::F32),
                    row_weights: numbers([length(rows)], 5, 1.0, DType::F32),
                };
                for (ignore_index, label_smoothing, reduction) in [
                    (None, 0.0, Reduction::Mean),
                    (Some(-100), 0.1, Reduction::Sum),
                    (Some(2), 0.1, Reduction::Mean),
                    (None, 0.1, Reduction::None),
                    (Some(2), 0.0, Reduction::None),
                ] {
                    let options =
                        LossOptions { ignore_index, label_smoothing, reduction, by_class: false, weighted: false };
                    let what = format!("{dtype:?} {rows} {options:?}");
                    let kernel = flex::loss(&inputs, &options);
                    assert_close(&loss::<Flex>(inputs.clone(), options), &kernel, &what);
                    // Without a reduction, the backward pass uses the gradients of the rows' losses as the rows' weights.
                    let (inputs, options) = match reduction {
                        Reduction::None => {
                            let row_weights = numbers([rows], 7, 1.0, DType::F32);
                            (
                                Inputs::<Flex> { row_weights, ..inputs.clone() },
                                LossOptions { reduction: Reduction::Sum, ..options },
                            )
                        }
                        _ => (inputs.clone(), options),
                    };
                    let wanted = [true, true, extras];
                    let (value, composed) = loss_and_gradients::<Flex>(inputs.clone(), options, wanted);
                    let (kernel, kernels, _) = flex::loss_and_gradients(&inputs, &options, wanted, None);
                    assert_close(&value, &kernel, &what);
                    let pairs = [
                        (composed.hidden, kernels.hidden),
                        (composed.weight, kernels.weight),
                        (composed.bias, kernels.bias),
                    ];
                    for (index, ((composed, kernel), wanted)) in pairs.into_iter().zip(wanted).enumerate() {
                        assert_eq!([composed.is_some(), kernel.is_some()], [wanted; 2], "{what}");
                        let Some((composed, kernel)) = composed.zip(kernel) else { continue };
                        // The kernel multiplies gradients of the logits in bf16 by hidden rows and weight in bf16.
                        let multiplied = if (dtype, index < 2) == (DType::BF16, true) { dtype } else { kernel.dtype() };
                        assert_close_in(multiplied, &composed, &kernel, &what);
                        let factor = numbers([1], 6, 3.0, DType::F32);
                        let expected = scale::scaled(kernel.clone(), &factor, dtype);
                        assert_close(&scaled::<Flex>(kernel, factor, dtype), &expected, &what);
                    }
                }
            }
        }
    }
}
