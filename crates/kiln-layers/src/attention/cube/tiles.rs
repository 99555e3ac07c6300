//! Tiles of rows and columns in shared memory, and their products on tensor cores.
//!
//! A plane (a warp) takes 16 rows. Rows and columns are queries and keys, or keys and queries. Rows in shared memory are longer than their
//! values, so that units that read the same columns of several rows at once read from different banks.

use burn_cubecl::cubecl;
use cubecl::cmma::{Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use crate::attention::cost::TILE;

/// Columns that are in shared memory at a time.
pub(super) const COLUMNS: usize = 32;
/// Values of a vector of scores.
pub(super) const QUAD: usize = 4;
/// Vectors of a row of scores that belong to one unit: every second one.
pub(super) const SHARE: usize = COLUMNS / QUAD / 2;
/// Values between the beginnings of rows of scores in shared memory.
pub(super) const PITCH: usize = COLUMNS + PADDING;
/// Values in shared memory that follow those of a row. They keep the beginnings of rows at multiples of 16 bytes.
const PADDING: usize = 8;
/// Vectors of the scores of a plane in shared memory.
pub(super) const OF_PLANE: usize = TILE * PITCH / QUAD;
/// Units of a plane.
pub(super) const PLANE: usize = 32;

/// Four values.
pub(super) type Quad<E> = Vector<E, Const<QUAD>>;

/// Vectors between the beginnings of rows of `depth` values in shared memory.
pub(super) const fn pitch(depth: usize, vector: usize) -> usize {
    (depth + PADDING) / vector
}

/// The place of a unit's vector of the scores of its row, and the first of its columns.
#[cube]
pub(super) fn share(unit: usize, #[comptime] index: usize) -> (usize, usize) {
    let vector = 2 * index + unit % 2;
    ((unit / 2) * (PITCH / QUAD) + vector, vector * QUAD)
}

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
    let vector = N::value();
    let pitch = comptime!(pitch(width * vector, vector));
    let start = place.of_head(sample, head);
    let mut at = UNIT_POS as usize;
    while at < count * width {
        let row = first + at / width;
        let mut value = Vector::<E, N>::new(E::from_int(0));
        if row < end {
            value = from.read(start + row * place.row + at % width);
        }
        to[(at / width) * pitch + at % width] = value;
        at += units;
    }
}

/// Writes the products of 16 rows with all columns to `scores`, `[16, COLUMNS]` for each plane, and waits for the plane.
#[cube]
pub(super) fn scores<E: Float, N: Size>(
    rows: &Shared<[Vector<E, N>]>,
    columns: &Shared<[Vector<E, N>]>,
    scores: &mut Shared<[Quad<f32>]>,
    plane: usize,
    #[comptime] depth: usize,
) {
    let vector = N::value();
    let pitch = comptime!(pitch(depth, vector));
    let stride = comptime!((pitch * vector) as u32);
    let sums = zeros(COLUMNS);
    #[unroll]
    for part in 0..depth / TILE {
        let of_rows = plane * TILE * pitch + part * TILE / vector;
        let a = Matrix::<Vector<E, N>>::from_slice(
            MatrixIdent::A,
            TILE,
            TILE,
            TILE,
            MatrixLayout::RowMajor,
            &rows[of_rows..rows.len()],
            stride,
        );
        #[unroll]
        for column in 0..COLUMNS / TILE {
            let of_columns = column * TILE * pitch + part * TILE / vector;
            let b = Matrix::<Vector<E, N>>::from_slice(
                MatrixIdent::B,
                TILE,
                TILE,
                TILE,
                MatrixLayout::ColMajor,
                &columns[of_columns..columns.len()],
                stride,
            );
            let sum = sums.index(column);
            cmma::execute(&a, &b, sum, sum);
        }
    }
    #[unroll]
    for column in 0..COLUMNS / TILE {
        let at = plane * OF_PLANE + column * TILE / QUAD;
        let end = scores.len();
        cmma::store(&mut scores[at..end], sums.index(column), PITCH as u32, MatrixLayout::RowMajor);
    }
    sync_plane();
}

/// Sums of 16 rows and `columns` columns, in pieces of 16 columns.
#[cube]
pub(super) fn zeros(#[comptime] columns: usize) -> Sequence<Matrix<f32>> {
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..columns / TILE {
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

/// Adds the products of weights, `[16, COLUMNS]` for each plane, with the columns. The plane has waited since they were written.
#[cube]
pub(super) fn add_weighted<E: Float, N: Size>(
    weights: &Shared<[Quad<E>]>,
    columns: &Shared<[Vector<E, N>]>,
    sums: &Sequence<Matrix<f32>>,
    plane: usize,
    #[comptime] depth: usize,
) {
    let vector = N::value();
    let pitch = comptime!(pitch(depth, vector));
    #[unroll]
    for column in 0..COLUMNS / TILE {
        let at = plane * OF_PLANE + column * TILE / QUAD;
        let a = Matrix::<Quad<E>>::from_slice(
            MatrixIdent::A,
            TILE,
            TILE,
            TILE,
            MatrixLayout::RowMajor,
            &weights[at..weights.len()],
            PITCH as u32,
        );
        #[unroll]
        for part in 0..depth / TILE {
            let at = column * TILE * pitch + part * TILE / vector;
            let b = Matrix::<Vector<E, N>>::from_slice(
                MatrixIdent::B,
                TILE,
                TILE,
                TILE,
                MatrixLayout::RowMajor,
                &columns[at..columns.len()],
                comptime!((pitch * vector) as u32),
            );
            let sum = sums.index(part);
            cmma::execute(&a, &b, sum, sum);
        }
    }
}

/// Writes the sums of the rows of a head from `first` to `end`. `stage` is the plane's memory of scores.
#[cube]
pub(super) fn write<E: Float, N: Size>(
    sums: &Sequence<Matrix<f32>>,
    stage: &mut Shared<[Quad<f32>]>,
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
    let at = plane * OF_PLANE;
    let length = stage.len();
    #[unroll]
    for part in 0..depth / TILE {
        sync_plane();
        cmma::store(&mut stage[at..length], sums.index(part), PITCH as u32, MatrixLayout::RowMajor);
        sync_plane();
        let mut unit = UNIT_POS_X as usize;
        while unit < TILE * TILE / vector {
            let (row, column) = (unit / (TILE / vector), unit % (TILE / vector));
            let of_all = first + plane * TILE + row;
            if of_all < end {
                let mut values = Vector::<E, N>::new(E::from_int(0));
                #[unroll]
                for quad in 0..comptime!(vector / QUAD) {
                    let of_quad = stage[at + (row * PITCH + column * vector) / QUAD + quad];
                    #[unroll]
                    for value in 0..QUAD {
                        values.insert(comptime!(quad * QUAD + value), E::cast_from(of_quad.extract(value)));
                    }
                }
                to.write(start + of_all * place.row + part * TILE / vector + column, values);
            }
            unit += PLANE;
        }
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
