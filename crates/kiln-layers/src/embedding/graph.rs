//! The rows of an embedding as an operation of burn's graph.

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, IndexingUpdateOp, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
#[cfg(feature = "flex")]
use kiln_operations::cpu::stored::zeros;
use kiln_operations::{Computed, Cost, InOrder, Kernel, KernelBackend, Onto, Operation, all};

use crate::composed::{cast, full};

/// The rows of a weight `[rows, width]` at ids `[count]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup;

#[derive(Clone, Copy, Debug)]
pub(super) enum Rows {
    /// From weight and ids.
    Forward,
    /// The gradient of a weight of so many rows, from the gradient of the rows and ids.
    Backward(usize),
    /// The same, added to a sum: from the gradient of the rows, ids and the sum.
    BackwardOnto,
}

static FORWARD: Cost = Cost { by_sample: true, ..Cost::new("kiln::embedding") };
static BACKWARD: Cost = Cost { by_sample: true, ..Cost::new("kiln::embedding_gradient") };
static BACKWARD_ONTO: Cost =
    Cost { in_place: &[(2, 0)], by_sample: true, ..Cost::new("kiln::embedding_gradient_onto") };

impl Kernel for Rows {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward => &FORWARD,
            Self::Backward(_) => &BACKWARD,
            Self::BackwardOnto => &BACKWARD_ONTO,
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let (shape, dtype) = &inputs[0];
        let rows = match self {
            Self::Forward => inputs[1].0[0],
            Self::Backward(rows) => *rows,
            Self::BackwardOnto => return vec![inputs[2].clone()],
        };
        vec![(Shape::new([rows, shape[1]]), *dtype)]
    }

    fn composed<B: KernelBackend>(&self, mut inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let mut sums = inputs.split_off(2);
        let [tensor, ids] = all(inputs);
        let ids = B::int(ids);
        vec![match self {
            Self::BackwardOnto => {
                let sum = sums.remove(0);
                let rows = cast::<B>(tensor, sum.dtype());
                B::float_select_assign(sum, 0, ids, rows, IndexingUpdateOp::Add)
            }
            Self::Forward => B::float_select(tensor, 0, ids),
            Self::Backward(rows) => {
                let shape = Shape::new([*rows, tensor.shape()[1]]);
                let zeros = full::<B>(shape, 0.0, &tensor.device(), tensor.dtype());
                B::float_select_assign(zeros, 0, ids, tensor, IndexingUpdateOp::Add)
            }
        }]
    }

    #[cfg(feature = "flex")]
    fn flex(&self, mut inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let sum = match self {
            Self::Forward => return self.composed::<burn::backend::Flex>(inputs),
            Self::Backward(rows) => zeros(Shape::new([*rows, inputs[0].shape()[1]]), inputs[0].dtype()),
            Self::BackwardOnto => inputs.remove(2),
        };
        let [rows, ids] = all(inputs);
        let rows = cast::<burn::backend::Flex>(rows, sum.dtype());
        vec![super::flex::add_rows(sum, &ids, &rows)]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, device: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        let width = inputs[0].0[1];
        let has_values = inputs.iter().all(|(shape, _)| shape.num_elements() > 0);
        let takes =
            matches!(self, Self::Backward(rows) if *rows > 0) && has_values && super::cube::takes(device, width);
        takes.then_some(Self::launch)
    }
}

#[cfg(feature = "cube")]
impl Rows {
    fn launch(&self, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        let [gradient, ids] = all(inputs);
        let Self::Backward(rows) = self else { unreachable!("the rows are burn's operation") };
        vec![super::cube::gradient(gradient, ids, *rows)]
    }
}

impl Operation for Lookup {
    const NAME: &'static str = "embedding";

    /// The ids, and the number of rows.
    type Saved<B: KernelBackend> = (FloatTensor<B>, usize);

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, _: &[bool]) -> Computed<B, Self::Saved<B>> {
        let saved = Some((inputs[1].clone(), inputs[0].shape()[0]));
        Computed { outputs: B::run(&Rows::Forward, inputs), saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (ids, rows): Self::Saved<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        vec![B::run(&Rows::Backward(rows), vec![gradient, ids]).pop(), None]
    }

    fn in_order(&self) -> InOrder {
        InOrder::Backward(&[0])
    }

    fn gradient_in_order<B: KernelBackend>(
        &self,
        (ids, rows): Self::Saved<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
        sums: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        match sums.into_iter().next().unwrap_or(Onto::Apart) {
            Onto::Sum(sum) => vec![B::run(&Rows::BackwardOnto, vec![gradient, ids, sum]).pop()],
            Onto::Begin => {
                let gradient = cast::<B>(gradient, DType::F32);
                vec![B::run(&Rows::Backward(rows), vec![gradient, ids]).pop()]
            }
            Onto::Apart => vec![B::run(&Rows::Backward(rows), vec![gradient, ids]).pop()],
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::backend::Flex;
    use kiln_operations::cpu::stored::tensor;

    use super::*;
    use crate::composed::tests::{DTYPES, numbers};

    #[test]
    fn rows_are_added_as_by_burns_operations_bit_for_bit() {
        for dtype in DTYPES {
            let ids = || tensor(vec![3i64, 0, 3, 3, 1, 2, 0], Shape::new([7]));
            let rows = || numbers([7, 5], 1, 1.0, dtype);
            let cases = [
                (Rows::Backward(4), vec![rows(), ids()]),
                (Rows::BackwardOnto, vec![rows(), ids(), numbers([4, 5], 2, 1.0, DType::F32)]),
                (Rows::BackwardOnto, vec![rows(), ids(), numbers([4, 5], 2, 1.0, dtype)]),
            ];
            for (kernel, inputs) in cases {
                let [own] = all(kernel.flex(inputs.clone()));
                let [composed] = all(kernel.composed::<Flex>(inputs));
                assert_eq!((own.shape(), own.dtype()), (composed.shape(), composed.dtype()));
                assert_eq!(own.bytes().to_vec(), composed.to_contiguous().bytes().to_vec(), "{kernel:?} {dtype:?}");
            }
        }
    }
}
