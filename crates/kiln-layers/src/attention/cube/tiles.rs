//! Tiles of rows and columns in shared memory, and their products on tensor cores.
//!
//! A plane (a warp) takes 16 rows. Rows and columns are queries and keys, or keys and queries.

use burn_cubecl::cubecl;
use cubecl::cmma::{Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use crate::attention::cost::TILE;

/// Columns that are in shared memory at a time.
pub(super) const COLUMNS: usize = 32;
/// Half of a row's places in shared memory belong to one unit.
pub(super) const HALF: usize = COLUMNS / 2;
/// Units of a plane.
pub(super) const PLANE: usize = 32;

/// Where rows of heads lie in a tensor, in vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Place {
    pub(super) base: usize,
    pub(super) sample: usize,
    pub(super) head: usize,
    pub(super) row: usize,
}

#[cube]
impl Place {
    /// The first vector of the rows of a head.
    pub(super) fn of_head(&self, sample: usize, head: usize) -> usize {
        self.base + sample * self.sample + head * self.head
    }
}

/// Copies rows of a head from `first` on to shared memory. Rows from `end` on are zeros.
#[cube]
pub(super) fn load<E: Float, N: Size>(
    from: &LinearView<'_, Vector<E, N>>,
    to: &mut Shared<[Vector<E, N>]>,
    place: &Place,
    sample: usize,
    head: usize,
    first: usize,
    end: usize,
    #[comptime] count: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
) {
    let start = place.of_head(sample, head);
    let mut at = UNIT_POS as usize;
    while at < count * width {
        let row = first + at / width;
        let mut value = Vector::<E, N>::new(E::from_int(0));
        if row < end {
            value = from.read(start + row * place.row + at % width);
        }
        to[at] = value;
        at += units;
    }
}

/// Writes the products of 16 rows with all columns to `scores`, `[16, COLUMNS]` for each plane.
#[cube]
pub(super) fn scores<E: Float, N: Size>(
    rows: &Shared<[Vector<E, N>]>,
    columns: &Shared<[Vector<E, N>]>,
    scores: &mut Shared<[f32]>,
    plane: usize,
    #[comptime] depth: usize,
) {
    let vector = N::value();
    #[unroll]
    for column in 0..COLUMNS / TILE {
        let sum =
            Matrix::<f32>::from_value(MatrixIdent::Accumulator, TILE, TILE, TILE, MatrixLayout::Undefined, 0.0f32);
        #[unroll]
        for part in 0..depth / TILE {
            let of_rows = (plane * TILE * depth + part * TILE) / vector;
            let of_columns = (column * TILE * depth + part * TILE) / vector;
            let a = Matrix::<Vector<E, N>>::from_slice(
                MatrixIdent::A,
                TILE,
                TILE,
                TILE,
                MatrixLayout::RowMajor,
                &rows[of_rows..rows.len()],
                depth as u32,
            );
            let b = Matrix::<Vector<E, N>>::from_slice(
                MatrixIdent::B,
                TILE,
                TILE,
                TILE,
                MatrixLayout::ColMajor,
                &columns[of_columns..columns.len()],
                depth as u32,
            );
            cmma::execute(&a, &b, &sum, &sum);
        }
        let at = plane * TILE * COLUMNS + column * TILE;
        let end = scores.len();
        cmma::store(&mut scores[at..end], &sum, COLUMNS as u32, MatrixLayout::RowMajor);
    }
}

/// Sums of 16 rows, in pieces of 16 columns of the depth.
#[cube]
pub(super) fn zeros(#[comptime] depth: usize) -> Sequence<Matrix<f32>> {
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..depth / TILE {
        sums.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            TILE,
            TILE,
            TILE,
            MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    sums
}

/// Adds the products of weights, `[16, COLUMNS]` for each plane, with the columns.
#[cube]
pub(super) fn add_weighted<E: Float, N: Size>(
    weights: &Shared<[E]>,
    columns: &Shared<[Vector<E, N>]>,
    sums: &Sequence<Matrix<f32>>,
    plane: usize,
    #[comptime] depth: usize,
) {
    let vector = N::value();
    #[unroll]
    for column in 0..COLUMNS / TILE {
        let at = plane * TILE * COLUMNS + column * TILE;
        let a = Matrix::<E>::from_slice(
            MatrixIdent::A,
            TILE,
            TILE,
            TILE,
            MatrixLayout::RowMajor,
            &weights[at..weights.len()],
            COLUMNS as u32,
        );
        #[unroll]
        for part in 0..depth / TILE {
            let at = (column * TILE * depth + part * TILE) / vector;
            let b = Matrix::<Vector<E, N>>::from_slice(
                MatrixIdent::B,
                TILE,
                TILE,
                TILE,
                MatrixLayout::RowMajor,
                &columns[at..columns.len()],
                depth as u32,
            );
            let sum = sums.index(part);
            cmma::execute(&a, &b, sum, sum);
        }
    }
}

/// Writes the sums of the rows of a head from `first` to `end`. `stage` has 16 x COLUMNS places for each plane.
#[cube]
pub(super) fn write<E: Float, N: Size>(
    sums: &Sequence<Matrix<f32>>,
    stage: &mut Shared<[f32]>,
    to: &mut LinearViewMut<'_, Vector<E, N>>,
    place: &Place,
    sample: usize,
    head: usize,
    first: usize,
    end: usize,
    plane: usize,
    #[comptime] depth: usize,
) {
    let vector = N::value();
    let start = place.of_head(sample, head);
    let at = plane * TILE * COLUMNS;
    let length = stage.len();
    #[unroll]
    for part in 0..depth / TILE {
        cmma::store(&mut stage[at..length], sums.index(part), TILE as u32, MatrixLayout::RowMajor);
        sync_cube();
        let mut unit = UNIT_POS_X as usize;
        while unit < TILE * TILE / vector {
            let (row, column) = (unit / (TILE / vector), unit % (TILE / vector));
            let of_all = first + plane * TILE + row;
            if of_all < end {
                let mut values = Vector::<E, N>::new(E::from_int(0));
                #[unroll]
                for value in 0..vector {
                    values.insert(value, E::cast_from(stage[at + row * TILE + column * vector + value]));
                }
                to.write(start + of_all * place.row + part * TILE / vector + column, values);
            }
            unit += PLANE;
        }
        sync_cube();
    }
}

/// The number of keys, from the first on, that queries up to `last` see.
#[cube]
pub(super) fn seen(last: usize, time: usize, keys: usize, #[comptime] causal: bool) -> usize {
    let mut seen = keys;
    if comptime!(causal) {
        let position = last + 1 + keys;
        seen = min(keys, select(position > time, position - time, 0usize));
    }
    seen
}
