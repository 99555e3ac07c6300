//! The loss of a linear layer whose weight is in memory in parts.
//!
//! The forward pass keeps the largest logit of each row and the sum of its exponentials. The backward pass computes the logits once more. On
//! the CPU device a block of classes is in memory at a time; elsewhere the whole weight is, as long as a pass takes.

use std::sync::Arc;

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, TensorData};
use kiln_operations::{Call, Computed, Cost, Cpu, Kernel, KernelBackend, Onto, Operation, RowParts, all};

use super::graph::LossKernel;
use super::settings::LossOptions;
use super::settings::{CLASSES, chunk_rows, in_bf16_products, of_products};
use crate::order::Order;
use crate::row_weight::{add_whole, whole};

/// The loss with its weight in parts. Inputs are hidden rows, the weight's parameter, targets and class weights, which may be missing.
#[derive(Clone, Debug)]
pub(super) struct LossInParts {
    pub(super) options: LossOptions,
    pub(super) parts: Arc<dyn RowParts>,
}

/// A pass of the loss.
#[derive(Clone, Debug)]
pub(super) enum Pass {
    /// From the inputs of the loss: the loss, and of each row the largest logit and the sum of the exponentials of the others, `[rows, 2]`.
    Forward(LossInParts),
    /// From these inputs, those values and the gradient of the loss: the gradient of the hidden rows, in this dtype. That of the weight goes to
    /// its parts.
    Backward(LossInParts, DType, Order),
}

static FORWARD: Cost = Cost {
    any_order: &[0, 1],
    cpu_scratch: |call, cpu| scratch(call, cpu, 1),
    gpu_scratch: |call, _| call.wide(1, 1),
    multiply_adds: |call| logits(call),
    by_sample: true,
    ..Cost::new("kiln::linear_cross_entropy_in_parts")
};

static BACKWARD: Cost = Cost {
    any_order: &[0, 1],
    // A part of the gradient that a block has begun, or of the sums that rows are added to in their order.
    cpu_scratch: |call, cpu| {
        let keeps_part = call.scalar(1) > 0 || call.scalar(0) > CLASSES as u64;
        scratch(call, cpu, 2) + call.wide(0, 1) + u64::from(keeps_part) * part(call)
    },
    gpu_scratch: |call, _| call.wide(1, 2),
    multiply_adds: |call| 3.0 * logits(call),
    by_sample: true,
    ..Cost::new("kiln::linear_cross_entropy_gradient_in_parts")
};

fn logits(call: &Call<'_>) -> f64 {
    call.elements(0) as f64 * call.dim(1, 0) as f64
}

/// A part of the weight.
fn part(call: &Call<'_>) -> u64 {
    4 * call.scalar(0).min(call.dim(1, 0)) * call.dim(0, 1)
}

/// Hidden rows and logits of a block for a chunk of rows, some values for each row, `copies` of a block of the weight, the part that is
/// read, and the operands that products pack.
fn scratch(call: &Call<'_>, cpu: &Cpu, copies: u64) -> u64 {
    let (rows, width, classes) = (call.dim(0, 0), call.dim(0, 1), call.dim(1, 0));
    let chunk = chunk_rows(rows as usize, width as usize, classes as usize) as u64;
    let block = classes.min(CLASSES as u64);
    let (in_bf16, learned) = (call.reads_bf16(0), [copies > 1; 2]);
    // A block is read in f32 from its parts, and rounded.
    let rounded = if call.reads_half(0) { 2 * block * width } else { 0 };
    let packed = match in_bf16 {
        true => in_bf16_products(cpu, [chunk, width, block], true, learned),
        false => of_products(cpu, [chunk, width, classes], true, learned),
    };
    4 * (chunk * (width + block) + copies * block * width) + part(call) + 64 * rows + rounded + packed
}

impl Pass {
    fn loss(&self) -> &LossInParts {
        match self {
            Self::Forward(loss) | Self::Backward(loss, ..) => loss,
        }
    }
}

impl Kernel for Pass {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward(_) => &FORWARD,
            Self::Backward(..) => &BACKWARD,
        }
    }

    fn scalars(&self) -> Vec<i64> {
        let in_order = matches!(self, Self::Backward(_, _, Order::Rows));
        vec![self.loss().parts.rows_of_part() as i64, i64::from(in_order)]
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let rows = inputs[0].0[0];
        match self {
            Self::Forward(_) => vec![(Shape::new([1]), DType::F32), (Shape::new([rows, 2]), DType::F32)],
            Self::Backward(_, dtype, _) => vec![(inputs[0].0.clone(), *dtype)],
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let LossInParts { options, parts } = self.loss();
        let mut inputs = inputs.into_iter();
        let [hidden, _, targets, class_weights] = all(inputs.by_ref().take(4).collect());
        let (device, dtype, shape) = (hidden.device(), hidden.dtype(), hidden.shape());
        let missing = |dtype: DType| B::float_from_data(TensorData::zeros::<f32, _>([0]).convert_dtype(dtype), &device);
        let weight = B::float_transpose(whole::<B>(parts.as_ref(), &device, dtype));
        let (bias, row_weights) = (missing(dtype), missing(DType::F32));
        let of_loss = vec![hidden, weight, bias, targets, class_weights, row_weights];
        match self {
            Self::Forward(_) => {
                let loss = B::run(&LossKernel::Loss(*options), of_loss).remove(0);
                let nothing = TensorData::zeros::<f32, _>([shape[0], 2]);
                vec![loss, B::float_from_data(nothing, &device)]
            }
            Self::Backward(_, dtype, _) => {
                let [_, factor] = all(inputs.collect());
                let made = B::run(&LossKernel::Gradients(*options, [true, true, false], Order::Any), of_loss);
                let [_, of_hidden, of_weight, _] = all(made);
                let scaled = |gradient| B::run(&LossKernel::Scale(*dtype), vec![gradient, factor.clone()]).remove(0);
                add_whole::<B>(parts.as_ref(), B::float_transpose(scaled(of_weight)));
                vec![scaled(of_hidden)]
            }
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let LossInParts { options, parts } = self.loss();
        let mut inputs = inputs.into_iter();
        let [hidden, _, targets, class_weights] = all(inputs.by_ref().take(4).collect());
        let given = super::flex_parts::Given { hidden, targets, class_weights };
        match self {
            Self::Forward(_) => super::flex_parts::loss(&given, options, parts.as_ref()),
            Self::Backward(_, dtype, order) => {
                let [sums, factor] = all(inputs.collect());
                vec![super::flex_parts::gradient(&given, options, parts.as_ref(), (sums, factor), (*dtype, *order))]
            }
        }
    }
}

impl Operation for LossInParts {
    const NAME: &'static str = "linear cross-entropy in parts";

    /// The inputs, and the values of the rows.
    type Saved<B: KernelBackend> = Vec<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let learns = wanted.contains(&true);
        if learns {
            self.parts.begin_use();
        }
        let mut saved = if learns { inputs.clone() } else { vec![] };
        let mut outputs = B::run(&Pass::Forward(self.clone()), inputs);
        saved.extend(outputs.pop());
        Computed { outputs, saved: learns.then_some(saved) }
    }

    fn gradient<B: KernelBackend>(
        &self,
        mut saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let dtype = saved[0].dtype();
        saved.push(gradient);
        let of_hidden = B::run(&Pass::Backward(self.clone(), dtype, Order::Any), saved).pop();
        vec![of_hidden.filter(|_| wanted[0])]
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        mut saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
        _: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        let dtype = saved[0].dtype();
        saved.push(gradient);
        let of_hidden = B::run(&Pass::Backward(self.clone(), dtype, Order::Rows), saved).pop();
        vec![of_hidden.filter(|_| wanted[0])]
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Device, Distribution, Int, Tensor};

    use super::super::settings::Reduction;
    use super::*;
    use crate::row_weight::tests::Kept;

    #[test]
    fn a_backend_without_kernels_brings_the_weight_in_whole() {
        let device = Device::flex();
        let parts = Kept::random([50, 6], 16);
        let options = LossOptions {
            ignore_index: Some(4),
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
            by_class: true,
            weighted: false,
        };
        let loss = LossInParts { options, parts: parts.clone() };
        let hidden = Tensor::<2>::random([9, 6], Distribution::Normal(0.0, 1.0), &device);
        let targets = Tensor::<1, Int>::arange(0..9, &device).cast(DType::I64);
        let none = Tensor::<1>::empty([0], &device);
        let flex = |tensor: Tensor<2>| tensor.try_into_primitive::<Flex>().unwrap();
        let given = || {
            let leaf = Tensor::<2>::zeros([50, 6], &device);
            let targets = targets.clone().try_into_primitive::<Flex>().unwrap();
            vec![flex(hidden.clone()), flex(leaf), targets, none.clone().try_into_primitive::<Flex>().unwrap()]
        };
        let values = |tensor: FlexTensor| kiln_operations::cpu::stored::to_f32(&tensor);
        let (whole, in_blocks) =
            (Pass::Forward(loss.clone()).composed::<Flex>(given()), Pass::Forward(loss.clone()).flex(given()));
        assert_eq!(values(whole[0].clone()), values(in_blocks[0].clone()));

        let factor = Tensor::<1>::full([1], 3.0, &device).try_into_primitive::<Flex>().unwrap();
        let backward =
            |sums: &FlexTensor| given().into_iter().chain([sums.clone(), factor.clone()]).collect::<Vec<_>>();
        let pass = Pass::Backward(loss, DType::F32, Order::Any);
        let of_hidden = values(pass.composed::<Flex>(backward(&whole[1])).remove(0));
        let of_weight = parts.take();
        assert_eq!(of_hidden, values(pass.flex(backward(&in_blocks[1])).remove(0)));
        assert_eq!(of_weight, parts.take());
        assert_eq!(of_weight.len(), 4);
    }
}
