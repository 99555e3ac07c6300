//! Positions of a learned embedding, added to each sample.

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::nn::Embedding;
use burn::tensor::{DType, Shape, Slice, Tensor};
use kiln_operations::{Computed, Cost, InOrder, Kernel, KernelBackend, Onto, Operation, adds_in_order, all};

use crate::check::{main_input, same_dtype, same_size};
use crate::composed::cast;
use crate::error::Error;
use crate::order::sum_or_zeros;

/// Adds rows `past` to `past + time` of a learned position embedding to each sample: `[samples, time, width]` in the dtype of both.
///
/// While [running sums](kiln_operations::RunningSums) are open, the gradient of the embedding is added sample after sample. Otherwise these
/// are burn's operations.
///
/// ```
/// use burn::nn::EmbeddingConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let positions = EmbeddingConfig::new(10, 4).init(&device);
/// let words = Tensor::<3>::zeros([2, 3, 4], &device);
/// assert_eq!(kiln_layers::add_positions(&positions, 0, words)?.dims(), [2, 3, 4]);
/// # Ok::<(), kiln_layers::Error>(())
/// ```
///
/// # Errors
/// [`Error::Size`] for fewer rows than `past + time` and for another width, [`Error::DType`], [`Error::UnsupportedDevice`],
/// [`Error::UnsupportedDType`].
pub fn add_positions(positions: &Embedding, past: usize, x: Tensor<3>) -> Result<Tensor<3>, Error> {
    let weight = positions.weight.val();
    let ([_, time, width], [rows, of_rows]) = (x.dims(), weight.dims());
    main_input("the input", &x)?;
    same_dtype(("the input", x.dtype()), ("the positions", weight.dtype()))?;
    same_size(("the width of the input", width), ("the width of the positions", of_rows))?;
    same_size(("the last position and one", past + time), ("the positions up to there", rows.min(past + time)))?;
    if !adds_in_order() {
        return Ok(x + weight.narrow(0, past, time).unsqueeze());
    }
    let inputs = vec![x.into_dispatch(), weight.into_dispatch()];
    Ok(Tensor::from_dispatch(kiln_operations::run(AddPositions(past), inputs).remove(0)))
}

/// Adds the rows of a weight from this one on.
#[derive(Clone, Copy, Debug)]
struct AddPositions(usize);

/// Adds the rows of the gradient `[samples, time, width]` to the rows of a sum `[rows, width]` from this one on, sample after sample.
#[derive(Clone, Copy, Debug)]
struct AddSamples(usize);

static GRADIENT: Cost = Cost { in_place: &[(1, 0)], by_sample: true, ..Cost::new("kiln::positions_gradient_onto") };

impl Kernel for AddSamples {
    fn cost(&self) -> &'static Cost {
        &GRADIENT
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        vec![inputs[1].clone()]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [gradient, mut sum] = all(inputs);
        let [samples, time, width] = gradient.shape().dims();
        let rows = [Slice::from(self.0..self.0 + time), Slice::from(0..width)];
        for sample in 0..samples {
            let of_sample = [Slice::from(sample..sample + 1), Slice::from(0..time), Slice::from(0..width)];
            let of_sample = B::float_reshape(B::float_slice(gradient.clone(), &of_sample), Shape::new([time, width]));
            let of_sample = cast::<B>(of_sample, sum.dtype());
            let added = B::float_add(B::float_slice(sum.clone(), &rows), of_sample);
            sum = B::float_slice_assign(sum, &rows, added);
        }
        vec![sum]
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        use kiln_operations::cpu::chain::add_rows_in_order;
        use kiln_operations::cpu::stored::owned;
        use rayon::prelude::*;

        const TASK: usize = 1 << 12;
        if inputs[0].dtype() != DType::F32 || inputs[1].dtype() != DType::F32 {
            return self.composed::<burn::backend::Flex>(inputs);
        }
        let [gradient, sum] = all(inputs);
        let [_, time, width] = gradient.shape().dims();
        let (gradient, mut sum) = (gradient.to_contiguous(), owned(sum));
        let values = &gradient.storage::<f32>()[gradient.layout().start_offset()..][..gradient.shape().num_elements()];
        let rows = &mut sum.storage_mut::<f32>()[self.0 * width..(self.0 + time) * width];
        rows.par_chunks_mut(TASK).enumerate().for_each(|(task, sums)| {
            if let Some(values) = values.get(task * TASK..) {
                add_rows_in_order(sums, values, time * width);
            }
        });
        vec![sum]
    }
}

impl Operation for AddPositions {
    const NAME: &'static str = "positions";

    /// The shape of the weight.
    type Saved<B: KernelBackend> = Shape;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, Shape> {
        let [x, weight] = all(inputs);
        let (shape, [_, time, width]) = (weight.shape(), x.shape().dims());
        let rows = B::float_slice(weight, &[Slice::from(self.0..self.0 + time), Slice::from(0..width)]);
        let sum = B::float_add(x, B::float_reshape(rows, Shape::new([1, time, width])));
        Computed { outputs: vec![sum], saved: Some(shape) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        shape: Shape,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        self.gradient_in_order::<B>(shape, gradient, wanted, vec![])
    }

    fn in_order(&self) -> InOrder {
        InOrder::Backward(&[1])
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        shape: Shape,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        mut sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        let of_weight = wanted[1].then(|| {
            let place = sums.pop().unwrap_or(Onto::Apart);
            let is_apart = place.is_apart();
            let sum = sum_or_zeros::<B>(place, shape, &gradient.device());
            let sum = B::run(&AddSamples(self.0), vec![gradient.clone(), sum]).remove(0);
            if is_apart { cast::<B>(sum, gradient.dtype()) } else { sum }
        });
        vec![Some(gradient), of_weight]
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::{AddSamples, DType};
    use crate::composed::tests::{assert_same_forms, numbers};

    #[test]
    fn composed_as_the_kernel() {
        let given = [numbers([3, 4, 5], 1, 1.0, DType::F32), numbers([9, 5], 2, 1.0, DType::F32)];
        assert_same_forms(&AddSamples(2), &given, 1, "from the third position");
    }
}
