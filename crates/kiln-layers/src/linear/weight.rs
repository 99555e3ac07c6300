//! Products with the weight of a linear layer, of any dtype and layout.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;

use super::settings::{BLOCK, GRADIENT};
use super::values::widened;
use crate::order::Order;
use kiln_operations::cpu::chain::add_in_order;
use kiln_operations::cpu::factor::{Factor, Values};
use kiln_operations::cpu::gemm::{Matrix, Output, Threads, multiply, multiply_rows};
use kiln_operations::cpu::stored::{owned, zeros};

/// The weight `[inputs, outputs]` in its memory layout: by rows, or as the rows of its transposed matrix.
pub(super) struct Weight {
    stored: FlexTensor,
    by_rows: bool,
}

/// The transposed view of a matrix.
fn swapped(matrix: FlexTensor) -> FlexTensor {
    let layout = matrix.layout().transpose(0, 1);
    matrix.with_layout(layout)
}

impl Weight {
    pub(super) fn new(weight: &FlexTensor) -> Self {
        let by_rows = weight.is_contiguous();
        let stored = if by_rows { weight.clone() } else { swapped(weight.clone()) };
        Self { stored: stored.to_contiguous(), by_rows }
    }

    /// Zeros in the layout of this weight.
    pub(super) fn zeros_like(&self, dtype: DType) -> Self {
        Self { stored: zeros(self.stored.shape(), dtype), by_rows: self.by_rows }
    }

    /// The matrix `[inputs, outputs]`.
    pub(super) fn into_tensor(self) -> FlexTensor {
        if self.by_rows { self.stored } else { swapped(self.stored) }
    }

    /// Number of outputs of the layer.
    pub(super) fn outputs(&self) -> usize {
        self.stored.shape()[usize::from(self.by_rows)]
    }

    /// Ranges of stored rows, with `size` rows each in 16 bits.
    fn blocks(&self, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows = self.stored.shape()[0];
        let size = if self.stored.dtype() == DType::F32 { rows.max(1) } else { size };
        (0..rows).step_by(size).map(move |first| first..(first + size).min(rows))
    }

    /// Adds `x weight` to the rows `y`.
    pub(super) fn add_product(&self, y: &mut [f32], x: Values<'_>, wide: &mut Vec<f32>) {
        if self.by_rows { self.add_contracted(y, x, wide) } else { self.add_expanded(y, x, wide) }
    }

    /// Adds `dy weightᵀ` to the rows `dx`.
    pub(super) fn add_input_gradient(&self, dx: &mut [f32], dy: Values<'_>, wide: &mut Vec<f32>) {
        if self.by_rows { self.add_expanded(dx, dy, wide) } else { self.add_contracted(dx, dy, wide) }
    }

    /// Adds `left stored` to `out`.
    fn add_contracted(&self, out: &mut [f32], left: Values<'_>, wide: &mut Vec<f32>) {
        let [rows, columns] = self.stored.shape().dims();
        if rows * columns == 0 {
            return;
        }
        let Values::F32(left) = left else {
            let right = Factor::by_step(Values::Bf16(self.stored.storage()), columns);
            let sizes = [left.len() / rows, columns, rows];
            return add_in_order(out, sizes, Factor::by_line(left, rows), right, Threads::All);
        };
        for block in self.blocks(BLOCK) {
            let stored = widened(&self.stored, block.start * columns..block.end * columns, wide);
            let left = Matrix::strided(&left[block.start..], left.len() / rows, block.len(), rows);
            let stored = Matrix::new(stored, block.len(), columns);
            multiply_rows((out, columns, Output::Add), left, stored, Threads::All);
        }
    }

    /// Adds `left storedᵀ` to `out`.
    fn add_expanded(&self, out: &mut [f32], left: Values<'_>, wide: &mut Vec<f32>) {
        let [rows, columns] = self.stored.shape().dims();
        if rows * columns == 0 {
            return;
        }
        let Values::F32(left) = left else {
            let right = Factor::by_line(Values::Bf16(self.stored.storage()), columns);
            let sizes = [left.len() / columns, rows, columns];
            return add_in_order(out, sizes, Factor::by_line(left, columns), right, Threads::All);
        };
        for block in self.blocks(BLOCK) {
            let stored = widened(&self.stored, block.start * columns..block.end * columns, wide);
            let left = Matrix::new(left, left.len() / columns, columns);
            let stored = Matrix::new(stored, block.len(), columns);
            multiply_rows((&mut out[block.start..], rows, Output::Add), left, stored.transposed(), Threads::All);
        }
    }

    /// A sum of gradients, to be added to in its own memory.
    pub(super) fn of_sum(sum: FlexTensor) -> Self {
        let by_rows = sum.is_contiguous();
        Self { stored: owned(if by_rows { sum } else { swapped(sum) }), by_rows }
    }

    /// Adds `xᵀ dy`; 16-bit values are replaced by it. For each block of stored rows it calls `visit`, which calls its argument with the rows
    /// of `x` and `dy`, some at a time.
    pub(super) fn add_gradient(
        &mut self,
        order: Order,
        wide: &mut Vec<f32>,
        mut visit: impl FnMut(bool, &mut dyn FnMut(Values<'_>, Values<'_>)),
    ) {
        let ([rows, columns], by_rows) = (self.stored.shape().dims(), self.by_rows);
        let is_wide = self.stored.dtype() == DType::F32;
        for block in self.blocks((GRADIENT / (4 * columns.max(1))).max(1)) {
            let values = block.start * columns..block.end * columns;
            super::values::written(&mut self.stored, values, wide, |sum| {
                if !is_wide {
                    sum.fill(0.0);
                }
                visit(block.start == 0, &mut |x, dy| {
                    let (first, second) = if by_rows { (x, dy) } else { (dy, x) };
                    let (first, count) = (first.from(block.start), second.len() / columns);
                    let (Values::F32(first), Values::F32(second), Order::Any) = (first, second, order) else {
                        let (sizes, second) = ([block.len(), columns, count], Factor::by_step(second, columns));
                        return add_in_order(sum, sizes, Factor::by_step(first, rows), second, Threads::All);
                    };
                    let first = Matrix::strided(first, count, block.len(), rows).transposed();
                    let second = Matrix::new(second, count, columns);
                    multiply((sum, columns, Output::Add), first, second, 1.0, Threads::All);
                });
            });
        }
    }
}
