//! The forward pass of attention in CubeCL.
//!
//! A cube takes 16 queries for each of its planes, and goes twice over the keys that they see: first for the sum of the exponentials of
//! each query's scores (as Milakov and Gimelshein 2018 do in one pass), then for the weighted sum of the values. So the sums on the
//! tensor cores are never rescaled. Scores stay in shared memory (Dao et al. 2022).

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::tiles::{
    COLUMNS, OF_PLANE, PLANE, Place, QUAD, Quad, SHARE, add_weighted, load, pitch, scores, seen, share, write, zeros,
};
use crate::attention::cost::TILE;

#[cube(launch, address_type = "dynamic")]
pub(super) fn attend<E: Float, N: Size>(
    queries: LinearView<'_, Vector<E, N>>,
    keys: LinearView<'_, Vector<E, N>>,
    values: LinearView<'_, Vector<E, N>>,
    mut output: LinearViewMut<'_, Vector<E, N>>,
    mut log_sums: LinearViewMut<'_, f32>,
    of_queries: Place,
    of_keys: Place,
    of_values: Place,
    of_output: Place,
    heads: usize,
    kv_heads: usize,
    time: usize,
    count: usize,
    scale: f32,
    #[comptime] causal: bool,
    #[comptime] depth: usize,
    #[comptime] planes: usize,
    #[define(E)] _dtype: ElemType,
) {
    let vector = N::value();
    let units = comptime!(planes * PLANE);
    let width = comptime!(depth / vector);
    let pitch = comptime!(pitch(depth, vector));
    let mut rows = Shared::<[Vector<E, N>]>::new_slice(planes * TILE * pitch);
    let mut columns = Shared::<[Vector<E, N>]>::new_slice(COLUMNS * pitch);
    let mut weighted = Shared::<[Vector<E, N>]>::new_slice(COLUMNS * pitch);
    let mut products = Shared::<[Quad<f32>]>::new_slice(planes * OF_PLANE);
    let mut weights = Shared::<[Quad<E>]>::new_slice(planes * OF_PLANE);
    let mut largest_of = Shared::<[f32]>::new_slice(units);
    let mut sum_of = Shared::<[f32]>::new_slice(units);
    let plane = UNIT_POS_Y as usize;
    let unit = UNIT_POS as usize;
    let head = CUBE_POS_Y as usize % heads;
    let sample = CUBE_POS_Y as usize / heads;
    let kv_head = head / (heads / kv_heads);
    let first = CUBE_POS_X as usize * (planes * TILE);
    load::<E, N>(&queries, &mut rows, &of_queries, sample, head, first, time, planes * TILE, width, units);
    let end = seen(min(first + planes * TILE, time) - 1, time, count, causal);
    // Each unit has half of the columns of a row.
    let row = first + unit / 2;
    let of_row = seen(min(row, time - 1), time, count, causal);
    let mut largest = f32::min_value();
    let mut sum = 0.0f32;
    let mut start = 0usize;
    while start < end {
        sync_cube();
        load::<E, N>(&keys, &mut columns, &of_keys, sample, kv_head, start, count, COLUMNS, width, units);
        sync_cube();
        scores::<E, N>(&rows, &columns, &mut products, plane, depth);
        let mut of_all = largest;
        #[unroll]
        for index in 0..SHARE {
            let (place, column) = share(unit, index);
            let scores = products[place];
            #[unroll]
            for value in 0..QUAD {
                let score = select(start + column + value < of_row, scores.extract(value) * scale, f32::min_value());
                of_all = max(of_all, score);
            }
        }
        sum *= (largest - of_all).exp();
        largest = of_all;
        #[unroll]
        for index in 0..SHARE {
            let (place, column) = share(unit, index);
            let scores = products[place];
            #[unroll]
            for value in 0..QUAD {
                let weight = (scores.extract(value) * scale - largest).exp();
                sum += select(start + column + value < of_row, weight, 0.0f32);
            }
        }
        start += COLUMNS;
    }
    largest_of[unit] = largest;
    sum_of[unit] = sum;
    sync_cube();
    let even = unit - unit % 2;
    let largest = max(largest_of[even], largest_of[even + 1]);
    let sum =
        sum_of[even] * (largest_of[even] - largest).exp() + sum_of[even + 1] * (largest_of[even + 1] - largest).exp();
    let log_sum = select(of_row == 0, 0.0f32, largest + sum.ln());
    if row < time && unit & 1 == 0 {
        log_sums.write((sample * heads + head) * time + row, log_sum);
    }
    let sums = zeros(depth);
    let mut start = 0usize;
    while start < end {
        sync_cube();
        load::<E, N>(&keys, &mut columns, &of_keys, sample, kv_head, start, count, COLUMNS, width, units);
        load::<E, N>(&values, &mut weighted, &of_values, sample, kv_head, start, count, COLUMNS, width, units);
        sync_cube();
        scores::<E, N>(&rows, &columns, &mut products, plane, depth);
        #[unroll]
        for index in 0..SHARE {
            let (place, column) = share(unit, index);
            let scores = products[place];
            let mut quad = Quad::<E>::new(E::from_int(0));
            #[unroll]
            for value in 0..QUAD {
                let weight = (scores.extract(value) * scale - log_sum).exp();
                quad.insert(value, E::cast_from(select(start + column + value < of_row, weight, 0.0f32)));
            }
            weights[place] = quad;
        }
        sync_plane();
        add_weighted::<E, N>(&weights, &weighted, &sums, plane, depth);
        start += COLUMNS;
    }
    write::<E, N>(&sums, &mut products, &mut output, &of_output, sample, head, first, time, plane, depth);
}
