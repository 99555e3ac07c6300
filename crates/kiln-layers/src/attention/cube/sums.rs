//! Products of the tiles in shared memory, and their sums: on tensor cores, or in the units' registers where a device has no tensor cores
//! for the dtype.

use burn_cubecl::cubecl;
use cubecl::cmma::{Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearViewMut;

use super::tiles::{COLUMNS, Form, OF_PLANE, PITCH, Place, QUAD, Quad, SHARE, share};
use crate::attention::cost::{PLANE, TILE};

/// Sums of 16 rows and some columns.
#[derive(CubeType)]
pub(super) struct Sums<N: Size> {
    /// On tensor cores: pieces of 16 columns.
    tiles: Sequence<Matrix<f32>>,
    /// In registers: every second vector of a row.
    values: Array<Vector<f32, N>>,
}

/// Zeros for sums of `columns` columns.
#[cube]
pub(super) fn zeros<N: Size>(#[comptime] columns: usize, #[comptime] form: Form) -> Sums<N> {
    let vector = N::value();
    let mut tiles = Sequence::<Matrix<f32>>::new();
    let share = comptime!(if form.inner > 0 { 1 } else { columns / vector / 2 });
    let mut values = Array::<Vector<f32, N>>::new(share);
    if comptime!(form.inner > 0) {
        #[unroll]
        for _ in 0..comptime!(columns / TILE) {
            tiles.push(Matrix::<f32>::from_value(
                MatrixIdent::Accumulator,
                TILE,
                TILE,
                form.inner,
                MatrixLayout::Undefined,
                0.0f32,
            ));
        }
    } else {
        #[unroll]
        for index in 0..share {
            values[index] = Vector::new(0.0f32);
        }
    }
    Sums::<N> { tiles, values }
}

/// Writes the products of 16 rows with all columns to `scores`, `[16, COLUMNS]` for each plane, and waits for the plane.
#[cube]
pub(super) fn scores<S: Float, N: Size>(
    rows: &Shared<[Vector<S, N>]>,
    columns: &Shared<[Vector<S, N>]>,
    scores: &mut Shared<[Quad<f32>]>,
    #[comptime] form: Form,
) {
    let vector = N::value();
    let pitch = comptime!(form.pitch(vector));
    let plane = UNIT_POS_Y as usize;
    if comptime!(form.inner > 0) {
        let inner = comptime!(form.inner);
        let stride = comptime!((pitch * vector) as u32);
        let sums = zeros::<N>(COLUMNS, form);
        #[unroll]
        for part in 0..comptime!(form.depth / form.inner) {
            let of_rows = plane * TILE * pitch + part * inner / vector;
            let a = Matrix::<Vector<S, N>>::from_slice(
                MatrixIdent::A,
                TILE,
                TILE,
                inner,
                MatrixLayout::RowMajor,
                &rows[of_rows..rows.len()],
                stride,
            );
            #[unroll]
            for column in 0..COLUMNS / TILE {
                let of_columns = column * TILE * pitch + part * inner / vector;
                let b = Matrix::<Vector<S, N>>::from_slice(
                    MatrixIdent::B,
                    TILE,
                    TILE,
                    inner,
                    MatrixLayout::ColMajor,
                    &columns[of_columns..columns.len()],
                    stride,
                );
                let sum = sums.tiles.index(column);
                cmma::execute(&a, &b, sum, sum);
            }
        }
        #[unroll]
        for column in 0..COLUMNS / TILE {
            let at = plane * OF_PLANE + column * TILE / QUAD;
            let end = scores.len();
            cmma::store(&mut scores[at..end], sums.tiles.index(column), PITCH as u32, MatrixLayout::RowMajor);
        }
    } else {
        let unit = UNIT_POS as usize;
        let of_row = (unit / 2) * pitch;
        #[unroll]
        for index in 0..SHARE {
            let (place, column) = share(unit, index);
            let mut products = Array::<Vector<f32, N>>::new(QUAD);
            #[unroll]
            for value in 0..QUAD {
                products[value] = Vector::new(0.0f32);
            }
            for part in 0..comptime!(form.depth / vector) {
                let row = Vector::<f32, N>::cast_from(rows[of_row + part]);
                #[unroll]
                for value in 0..QUAD {
                    products[value] += row * Vector::cast_from(columns[(column + value) * pitch + part]);
                }
            }
            let mut quad = Quad::<f32>::new(0.0f32);
            #[unroll]
            for value in 0..QUAD {
                quad.insert(value, products[value].vector_sum());
            }
            scores[place] = quad;
        }
    }
    sync_plane();
}

/// Adds the products of weights, `[16, COLUMNS]` for each plane, with the columns. The plane has waited since they were written.
#[cube]
pub(super) fn add_weighted<S: Float, N: Size>(
    weights: &Shared<[Quad<S>]>,
    columns: &Shared<[Vector<S, N>]>,
    sums: &mut Sums<N>,
    #[comptime] form: Form,
) {
    let vector = N::value();
    let pitch = comptime!(form.pitch(vector));
    if comptime!(form.inner > 0) {
        let inner = comptime!(form.inner);
        #[unroll]
        for column in 0..comptime!(COLUMNS / form.inner) {
            let at = UNIT_POS_Y as usize * OF_PLANE + column * inner / QUAD;
            let a = Matrix::<Quad<S>>::from_slice(
                MatrixIdent::A,
                TILE,
                TILE,
                inner,
                MatrixLayout::RowMajor,
                &weights[at..weights.len()],
                PITCH as u32,
            );
            #[unroll]
            for part in 0..comptime!(form.depth / TILE) {
                let at = column * inner * pitch + part * TILE / vector;
                let b = Matrix::<Vector<S, N>>::from_slice(
                    MatrixIdent::B,
                    TILE,
                    TILE,
                    inner,
                    MatrixLayout::RowMajor,
                    &columns[at..columns.len()],
                    comptime!((pitch * vector) as u32),
                );
                let sum = sums.tiles.index(part);
                cmma::execute(&a, &b, sum, sum);
            }
        }
    } else {
        let unit = UNIT_POS as usize;
        for quad in 0..COLUMNS / QUAD {
            let weights = weights[(unit / 2) * (PITCH / QUAD) + quad];
            #[unroll]
            for value in 0..QUAD {
                let weight = Vector::<f32, N>::new(f32::cast_from(weights.extract(value)));
                let of_column = (quad * QUAD + value) * pitch + unit % 2;
                #[unroll]
                for part in 0..comptime!(form.depth / vector / 2) {
                    sums.values[part] += weight * Vector::cast_from(columns[of_column + 2 * part]);
                }
            }
        }
    }
}

/// Writes the sums of the rows of a head from `first` to `end`. `stage` is the plane's memory of scores.
#[cube]
pub(super) fn write<E: Float, N: Size>(
    sums: &Sums<N>,
    stage: &mut Shared<[Quad<f32>]>,
    to: &mut LinearViewMut<'_, Vector<E, N>>,
    place: &Place,
    sample: usize,
    head: usize,
    first: usize,
    end: usize,
    #[comptime] form: Form,
) {
    let vector = N::value();
    let start = place.of_head(sample, head);
    if comptime!(form.inner > 0) {
        let plane = UNIT_POS_Y as usize;
        let at = plane * OF_PLANE;
        let length = stage.len();
        #[unroll]
        for part in 0..comptime!(form.depth / TILE) {
            sync_plane();
            cmma::store(&mut stage[at..length], sums.tiles.index(part), PITCH as u32, MatrixLayout::RowMajor);
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
    } else {
        let unit = UNIT_POS as usize;
        let row = first + unit / 2;
        if row < end {
            #[unroll]
            for part in 0..comptime!(form.depth / vector / 2) {
                to.write(start + row * place.row + 2 * part + unit % 2, Vector::cast_from(sums.values[part]));
            }
        }
    }
}
