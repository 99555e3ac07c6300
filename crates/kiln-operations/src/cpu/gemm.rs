//! Products of matrices in slices, by the gemm crate.

use crate::product::enough_rows;

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix whose rows follow each other without gaps.
    pub fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(values, rows, columns, columns)
    }

    /// A matrix whose rows are `row_stride` values apart.
    pub fn strided(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// The values, with what lies between the rows.
    pub fn values(self) -> &'a [f32] {
        self.values
    }

    /// The transposed matrix.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    fn within_slice(&self) -> bool {
        let last = self.rows.saturating_sub(1) * self.row_stride + self.columns.saturating_sub(1) * self.column_stride;
        self.rows == 0 || self.columns == 0 || last < self.values.len()
    }
}

/// Whether a product replaces the values of its output, or is added to them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The output is replaced by the product.
    Replace,
    /// The product is added to the output.
    Add,
}

/// The threads that compute a product.
#[derive(Clone, Copy)]
pub enum Threads {
    /// The calling thread, which runs one of several tasks.
    One,
    /// All threads of rayon's pool.
    All,
}

/// Computes `out = factor * left right`, or adds it to `out`. The rows of `out` lie `out_stride` values apart.
///
/// # Panics
/// When the sizes do not fit together, which is a bug of this crate.
#[allow(unsafe_code)]
pub fn multiply(
    (out, out_stride, output): (&mut [f32], usize, Output),
    left: Matrix<'_>,
    right: Matrix<'_>,
    factor: f32,
    threads: Threads,
) {
    let (rows, columns, depth) = (left.rows, right.columns, left.columns);
    assert!(right.rows == depth && left.within_slice() && right.within_slice(), "operands of a product");
    assert!(
        columns <= out_stride && (rows == 0 || (rows - 1) * out_stride + columns <= out.len()),
        "output of a product"
    );
    if rows == 0 || columns == 0 {
        return;
    }
    let parallelism = match threads {
        Threads::One => gemm::Parallelism::None,
        Threads::All => gemm::Parallelism::Rayon(0),
    };
    // SAFETY: the assertions keep every index within its slice, and `out` is borrowed mutably.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            output == Output::Add,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Computes `out = left right` as [`multiply`] does, or adds it, where the rows of `left` are samples: each has the same bits, whatever the number
/// of rows beside it. gemm takes other paths, which round in another order, for few rows: zeros are added until it does not.
pub fn multiply_rows(
    (out, out_stride, output): (&mut [f32], usize, Output),
    left: Matrix<'_>,
    right: Matrix<'_>,
    threads: Threads,
) {
    let (rows, columns, depth) = (left.rows, right.columns, left.columns);
    let enough = enough_rows(columns, depth);
    if rows == 0 || columns == 0 || rows >= enough {
        return multiply((out, out_stride, output), left, right, 1.0, threads);
    }
    let mut wide_left = vec![0.0; enough * depth];
    for (row, wide) in wide_left.chunks_exact_mut(depth.max(1)).take(rows).enumerate() {
        let values = left.values[row * left.row_stride..].iter().step_by(left.column_stride);
        wide.iter_mut().zip(values).for_each(|(wide, value)| *wide = *value);
    }
    let mut wide_out = vec![0.0; enough * columns];
    let lines = |out: usize| out * out_stride..out * out_stride + columns;
    if output == Output::Add {
        wide_out
            .chunks_exact_mut(columns)
            .take(rows)
            .enumerate()
            .for_each(|(row, wide)| wide.copy_from_slice(&out[lines(row)]));
    }
    multiply((&mut wide_out, columns, output), Matrix::new(&wide_left, enough, depth), right, 1.0, threads);
    wide_out.chunks_exact(columns).take(rows).enumerate().for_each(|(row, wide)| out[lines(row)].copy_from_slice(wide));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that need all bits of their sums.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| (((i + seed) * 7919 % 4001) as f32 - 2000.0) / 997.0).collect()
    }

    #[test]
    fn a_row_has_the_same_bits_beside_any_number_of_rows() {
        let most = 70;
        for depth in [1, 2, 3, 512, 513, 1500] {
            for columns in [1, 5, 64, 65, 300] {
                let (left, right) = (numbers(most * depth, 1), numbers(depth * columns, 2));
                let by_rows = Matrix::new(&right, depth, columns);
                let by_columns = Matrix::new(&right, columns, depth).transposed();
                for (right, output) in [(by_rows, Output::Add), (by_columns, Output::Replace)] {
                    let product = |first: usize, rows: usize| {
                        let mut out = vec![0.5; rows * columns];
                        let left = Matrix::new(&left[first * depth..], rows, depth);
                        multiply_rows((&mut out, columns, output), left, right, Threads::One);
                        out
                    };
                    let whole = product(0, most);
                    for (first, rows) in [(0, 1), (3, 1), (1, 2), (0, 20), (5, 64), (4, 65)] {
                        let expected = &whole[first * columns..(first + rows) * columns];
                        assert!(product(first, rows) == expected, "{rows} rows of {columns}, {depth} deep");
                    }
                }
            }
        }
    }
}
