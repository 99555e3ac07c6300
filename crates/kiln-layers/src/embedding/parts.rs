//! The rows of an embedding whose weight is in memory in parts. On the CPU one part is in memory at a time; elsewhere the whole weight is, as
//! long as a pass takes.

use std::sync::Arc;

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use kiln_operations::{Computed, Cost, Kernel, KernelBackend, Onto, Operation, RowParts, all};

use super::graph::Rows;
use crate::composed::cast;
use crate::order::Order;
use crate::row_weight::{add_whole, whole};

/// The rows of a weight in parts, in a dtype, at ids `[count]`. Inputs are the weight's parameter and the ids.
#[derive(Clone, Debug)]
pub(super) struct LookupInParts {
    pub(super) parts: Arc<dyn RowParts>,
    pub(super) dtype: DType,
}

#[derive(Clone, Debug)]
enum Pass {
    /// From the parameter and ids: the rows.
    Forward(LookupInParts),
    /// From these and the gradient of the rows. The gradient of the weight goes to its parts; the output is one value without a meaning.
    Backward(LookupInParts, Order),
}

static FORWARD: Cost = Cost {
    cpu_scratch: |call, _| 8 * call.scalar(0).min(call.dim(0, 0)) * call.dim(0, 1),
    gpu_scratch: |call, _| call.wide(0, 1),
    by_sample: true,
    ..Cost::new("kiln::embedding_in_parts")
};

static BACKWARD: Cost = Cost {
    cpu_scratch: |call, _| 12 * call.scalar(0).min(call.dim(0, 0)) * call.dim(0, 1) + 2 * call.bytes(2),
    gpu_scratch: |call, _| call.wide(0, 1),
    by_sample: true,
    ..Cost::new("kiln::embedding_gradient_in_parts")
};

impl Pass {
    fn lookup(&self) -> &LookupInParts {
        match self {
            Self::Forward(lookup) | Self::Backward(lookup, _) => lookup,
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
        vec![self.lookup().parts.rows_of_part() as i64]
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward(lookup) => vec![(Shape::new([inputs[1].0[0], inputs[0].0[1]]), lookup.dtype)],
            Self::Backward(..) => vec![(Shape::new([1]), DType::F32)],
        }
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let LookupInParts { parts, dtype } = self.lookup();
        match self {
            Self::Forward(_) => {
                let [_, ids] = all(inputs);
                let weight = whole::<B>(parts.as_ref(), &ids.device(), *dtype);
                B::run(&Rows::Forward, vec![weight, ids])
            }
            Self::Backward(..) => {
                let [_, ids, gradient] = all(inputs);
                let made = B::run(&Rows::Backward(parts.shape()[0]), vec![gradient.clone(), ids]).remove(0);
                add_whole::<B>(parts.as_ref(), made);
                vec![B::float_zeros(Shape::new([1]), &gradient.device(), DType::F32.into())]
            }
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let LookupInParts { parts, dtype } = self.lookup();
        match self {
            Self::Forward(_) => {
                let [_, ids] = all(inputs);
                vec![flex::rows(parts.as_ref(), &ids, *dtype)]
            }
            Self::Backward(_, order) => {
                let [_, ids, gradient] = all(inputs);
                flex::add_gradient(parts.as_ref(), &ids, &gradient, *order);
                vec![kiln_operations::cpu::stored::zeros(Shape::new([1]), DType::F32)]
            }
        }
    }
}

/// The rows on burn's CPU device.
#[cfg(feature = "flex")]
mod flex {
    use burn::backend::flex::FlexTensor;
    use burn::backend::ops::FloatTensorOps;
    use burn::backend::{Flex, TensorMetadata};
    use burn::tensor::{DType, IndexingUpdateOp, Shape, TensorData};
    use kiln_operations::RowParts;
    use kiln_operations::cpu::stored::{from_f32, tensor, to_f32, zeros};

    use crate::order::Order;

    /// The positions of ids in each part.
    fn by_part(parts: &dyn RowParts, ids: &FlexTensor) -> Vec<Vec<(usize, usize)>> {
        let mut found = vec![vec![]; parts.count()];
        for (position, id) in ids.to_contiguous().storage::<i64>().iter().enumerate() {
            let row = usize::try_from(*id).ok().filter(|row| *row < parts.shape()[0]);
            // As burn's operation does.
            let row = row.unwrap_or_else(|| panic!("an id is {id}, expected one below {}", parts.shape()[0]));
            let part = row / parts.rows_of_part();
            found[part].push((position, row - parts.rows(part).start));
        }
        found
    }

    pub(super) fn rows(parts: &dyn RowParts, ids: &FlexTensor, dtype: DType) -> FlexTensor {
        let (count, width) = (ids.shape()[0], parts.shape()[1]);
        let mut out = vec![0.0; count * width];
        for (part, ids) in by_part(parts, ids).into_iter().enumerate().filter(|(_, ids)| !ids.is_empty()) {
            let data = parts.read(part);
            let values = data.as_slice::<f32>().unwrap_or_default();
            for (position, row) in ids {
                let out = &mut out[position * width..][..width];
                match values.get(row * width..(row + 1) * width) {
                    Some(values) => out.copy_from_slice(values),
                    None => out.fill(f32::NAN),
                }
            }
        }
        from_f32(out, Shape::new([count, width]), dtype)
    }

    pub(super) fn add_gradient(parts: &dyn RowParts, ids: &FlexTensor, gradient: &FlexTensor, order: Order) {
        let (dtype, width) = (gradient.dtype(), parts.shape()[1]);
        let in_order = order != Order::Any;
        for (part, ids) in by_part(parts, ids).into_iter().enumerate() {
            let shape = Shape::new([parts.rows(part).len(), width]);
            let sum = if in_order { parts.take_sum(part) } else { None };
            let mut of_part = sum.map_or_else(|| zeros(shape.clone(), dtype), FlexTensor::from_data);
            let count = ids.len();
            if count > 0 {
                let (positions, rows): (Vec<i64>, Vec<i64>) =
                    ids.iter().map(|(position, row)| (*position as i64, *row as i64)).unzip();
                let [positions, rows] = [positions, rows].map(|ids| tensor(ids, Shape::new([count])));
                let values = Flex::float_select(gradient.clone(), 0, positions);
                of_part = Flex::float_select_assign(of_part, 0, rows, values, IndexingUpdateOp::Add);
            }
            let of_part = TensorData::new(to_f32(&of_part), shape);
            match in_order {
                true => parts.put_sum(part, of_part, 1.0),
                false => parts.add_gradient(part, of_part),
            }
        }
    }
}

impl Operation for LookupInParts {
    const NAME: &'static str = "embedding in parts";

    /// The parameter and the ids.
    type Saved<B: KernelBackend> = Vec<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let learns = wanted.contains(&true);
        if learns {
            self.parts.begin_use();
        }
        let saved = learns.then(|| inputs.clone());
        Computed { outputs: B::run(&Pass::Forward(self.clone()), inputs), saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        mut saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        saved.push(gradient);
        let _ = B::run(&Pass::Backward(self.clone(), Order::Any), saved);
        vec![]
    }

    /// As in memory, the sum is f32.
    fn gradient_in_order<B: KernelBackend>(
        &self,
        mut saved: Self::Saved<B>,
        gradient: FloatTensor<B>,
        _: &[bool],
        _: Vec<Onto<FloatTensor<B>>>,
    ) -> Vec<Option<FloatTensor<B>>> {
        saved.push(cast::<B>(gradient, DType::F32));
        let _ = B::run(&Pass::Backward(self.clone(), Order::Rows), saved);
        vec![]
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Device, Distribution, Int, Tensor};
    use kiln_operations::cpu::stored::to_f32;

    use super::*;
    use crate::row_weight::tests::Kept;

    #[test]
    fn a_backend_without_kernels_brings_the_weight_in_whole() {
        let device = Device::flex();
        let parts = Kept::random([20, 3], 8);
        let lookup = LookupInParts { parts: parts.clone(), dtype: DType::F32 };
        let leaf = || Tensor::<2>::zeros([20, 3], &device).try_into_primitive::<Flex>().unwrap();
        let ids =
            Tensor::<1, Int>::from_data([3_i64, 19, 8, 3], (&device, DType::I64)).try_into_primitive::<Flex>().unwrap();
        let forward = Pass::Forward(lookup.clone());
        let rows = forward.composed::<Flex>(vec![leaf(), ids.clone()]).remove(0);
        assert_eq!(to_f32(&rows), to_f32(&forward.flex(vec![leaf(), ids.clone()]).remove(0)));

        let gradient = Tensor::<2>::random([4, 3], Distribution::Normal(0.0, 1.0), &device);
        let gradient = gradient.try_into_primitive::<Flex>().unwrap();
        let backward = Pass::Backward(lookup, Order::Any);
        let _ = backward.composed::<Flex>(vec![leaf(), ids.clone(), gradient.clone()]);
        let whole = parts.take();
        let _ = backward.flex(vec![leaf(), ids, gradient]);
        assert_eq!(whole, parts.take());
        assert_eq!(whole.len(), 3);
    }
}
