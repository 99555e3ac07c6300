//! Blocks of a tensor's memory: rows of heads that are read, and blocks of rows and columns that tasks write at the same time.

use std::marker::PhantomData;
use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;

use kiln_operations::cpu::stored::Stored;

/// The rows of each head of a tensor. The values of a row lie side by side.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a, E> {
    values: &'a [E],
    /// The index of the first row.
    start: usize,
    /// The distances between samples, between heads and between rows.
    strides: [usize; 3],
    depth: usize,
}

/// The tensor itself if the values of its last dimension lie side by side, otherwise a copy.
pub(super) fn readable(tensor: &FlexTensor) -> FlexTensor {
    let strides = tensor.layout().strides();
    match strides.last() == Some(&1) && strides.iter().all(|stride| *stride >= 0) {
        true => tensor.clone(),
        false => tensor.to_contiguous(),
    }
}

impl<'a, E: Stored> Heads<'a, E> {
    /// A readable tensor `[batch, heads, rows, depth]`.
    pub(super) fn separate(tensor: &'a FlexTensor) -> Self {
        let (layout, shape) = (tensor.layout(), tensor.shape());
        let stride = |dimension: usize| layout.strides()[dimension].unsigned_abs();
        let strides = [stride(0), stride(1), stride(2)];
        Self { values: tensor.storage::<E>(), start: layout.start_offset(), strides, depth: shape[3] }
    }

    /// The heads from column `first` on of a readable tensor `[batch, rows, columns]`.
    pub(super) fn packed(tensor: &'a FlexTensor, first: usize, depth: usize) -> Self {
        let layout = tensor.layout();
        let stride = |dimension: usize| layout.strides()[dimension].unsigned_abs();
        let strides = [stride(0), depth, stride(1)];
        Self { values: tensor.storage::<E>(), start: layout.start_offset() + first, strides, depth }
    }

    fn row(&self, sample: usize, head: usize, row: usize) -> &'a [E] {
        let first = self.start + sample * self.strides[0] + head * self.strides[1] + row * self.strides[2];
        &self.values[first..first + self.depth]
    }

    /// Copies rows of a head into `out`, `[rows, depth]`.
    pub(super) fn load(&self, sample: usize, head: usize, rows: Range<usize>, out: &mut [f32], wide: &mut Vec<f32>) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.depth)) {
            out.copy_from_slice(E::widened(self.row(sample, head, row), wide));
        }
    }
}

/// Rows and columns of a slice that is borrowed mutably. It can be split by rows and by columns, so that tasks write blocks of the same
/// rows at the same time.
pub(super) struct Grid<'a, E> {
    first: *mut E,
    rows: usize,
    columns: usize,
    /// The distance between rows.
    stride: usize,
    borrowed: PhantomData<&'a mut [E]>,
}

// SAFETY: a grid is the only way to its values, like the mutable slice from which it was made.
#[allow(unsafe_code)]
unsafe impl<E: Send> Send for Grid<'_, E> {}

impl<'a, E> Grid<'a, E> {
    /// All values, in rows of `columns`.
    pub(super) fn new(values: &'a mut [E], columns: usize) -> Self {
        let rows = values.len().checked_div(columns).unwrap_or(0);
        Self { first: values.as_mut_ptr(), rows, columns, stride: columns, borrowed: PhantomData }
    }

    fn split_rows(self, count: usize) -> [Self; 2] {
        let count = count.min(self.rows);
        // The first value of the second part lies beyond the slice if that part has no rows: it is never read.
        let second = self.first.wrapping_add(count * self.stride);
        [Self { rows: count, ..self }, Self { first: second, rows: self.rows - count, ..self }]
    }

    pub(super) fn split_columns(self, count: usize) -> [Self; 2] {
        let count = count.min(self.columns);
        let second = self.first.wrapping_add(count);
        [Self { columns: count, ..self }, Self { first: second, columns: self.columns - count, ..self }]
    }

    /// Blocks of `count` rows.
    pub(super) fn row_blocks(self, count: usize) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let [block, others] = rest.take().filter(|rest| rest.rows > 0)?.split_rows(count.max(1));
            rest = Some(others);
            Some(block)
        })
    }

    /// Blocks of `count` columns.
    pub(super) fn column_blocks(self, count: usize) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let [block, others] = rest.take().filter(|rest| rest.columns > 0)?.split_columns(count.max(1));
            rest = Some(others);
            Some(block)
        })
    }

    /// The columns of one row.
    #[allow(unsafe_code)]
    fn row_mut(&mut self, row: usize) -> &mut [E] {
        assert!(row < self.rows, "a row of a grid");
        // SAFETY: the row lies within the slice from which the grid was made, its columns belong to no other grid, and the grid is
        // borrowed mutably for as long as the row.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.stride), self.columns) }
    }
}

impl<E: Stored> Grid<'_, E> {
    /// Writes columns `from..from + depth` of the rows from `first` on; `values` are `[rows, depth]`.
    pub(super) fn store(&mut self, first: usize, from: usize, depth: usize, values: &[f32], kept: &mut Vec<f32>) {
        for (row, values) in values.chunks_exact(depth).enumerate() {
            let out = &mut self.row_mut(first + row)[from..from + depth];
            E::written(out, kept, |out| out.copy_from_slice(values));
        }
    }
}

/// The first `length` values of a buffer, which is enlarged if it is shorter.
pub(super) fn sized<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) -> &mut [T] {
    if buffer.len() < length {
        buffer.resize(length, T::default());
    }
    &mut buffer[..length]
}
