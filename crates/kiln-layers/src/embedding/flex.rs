//! The gradient of an embedding on the CPU: rows are added one after the other, where the sum is.

use burn::backend::flex::FlexTensor;
use burn::backend::ops::IntTensorOps;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, IntDType};
use kiln_operations::by_dtype;
use kiln_operations::cpu::place::Place;
use kiln_operations::cpu::stored::Stored;
use kiln_operations::simd;

/// `sum` with each row, `[count, width]` in the dtype of the sum, added to that of its id. The sum is changed in place if no other handle to it
/// exists.
pub(super) fn add_rows(sum: FlexTensor, ids: &FlexTensor, rows: &FlexTensor) -> FlexTensor {
    let ids = if ids.dtype() == DType::I64 { ids.clone() } else { Flex::int_cast(ids.clone(), IntDType::I64) };
    let (ids, rows) = (ids.to_contiguous(), rows.to_contiguous());
    by_dtype!(sum.dtype(), E => added::<E>(sum, ids.storage::<i64>(), rows.storage::<E>()), else sum)
}

fn added<E: Stored>(sum: FlexTensor, ids: &[i64], rows: &[E]) -> FlexTensor {
    let width = sum.shape()[1].max(1);
    let mut place = Place::<E>::of(sum);
    let values = place.values().filled();
    let (mut wide_row, mut wide_sum) = (vec![], vec![]);
    for (id, row) in ids.iter().zip(rows.chunks_exact(width)) {
        let first = *id as usize * width;
        let row = E::widened(row, &mut wide_row);
        E::changed(&mut values[first..first + width], &mut wide_sum, |sum| add(sum, row));
    }
    place.tensor()
}

simd! { fn add(sum: &mut [f32], row: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += *value;
    }
}}
