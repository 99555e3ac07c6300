//! The backward pass of attention in CubeCL: one launch for the queries, one for keys and values. Weights are computed again from the
//! logarithms of their sums (Dao et al. 2022). No sum depends on the order in which cubes run.

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::tiles::{
    COLUMNS, OF_PLANE, PLANE, Place, QUAD, Quad, SHARE, add_weighted, load, pitch, scores, seen, share, write, zeros,
};
use crate::attention::cost::TILE;

/// The gradient of the queries, and the product of each query's output with its gradient.
#[cube(launch, address_type = "dynamic")]
pub(super) fn queries_gradient<E: Float, N: Size>(
    queries: LinearView<'_, Vector<E, N>>,
    keys: LinearView<'_, Vector<E, N>>,
    values: LinearView<'_, Vector<E, N>>,
    output: LinearView<'_, Vector<E, N>>,
    gradient: LinearView<'_, Vector<E, N>>,
    log_sums: LinearView<'_, f32>,
    mut result: LinearViewMut<'_, Vector<E, N>>,
    mut of_outputs: LinearViewMut<'_, f32>,
    of_queries: Place,
    of_keys: Place,
    of_values: Place,
    of_output: Place,
    of_gradient: Place,
    of_result: Place,
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
    let mut row_gradients = Shared::<[Vector<E, N>]>::new_slice(planes * TILE * pitch);
    let mut columns = Shared::<[Vector<E, N>]>::new_slice(COLUMNS * pitch);
    let mut weighted = Shared::<[Vector<E, N>]>::new_slice(COLUMNS * pitch);
    let mut products = Shared::<[Quad<f32>]>::new_slice(planes * OF_PLANE);
    let mut of_weights = Shared::<[Quad<f32>]>::new_slice(planes * OF_PLANE);
    let mut changes = Shared::<[Quad<E>]>::new_slice(planes * OF_PLANE);
    let mut halves = Shared::<[f32]>::new_slice(units);
    let plane = UNIT_POS_Y as usize;
    let unit = UNIT_POS as usize;
    let head = CUBE_POS_Y as usize % heads;
    let sample = CUBE_POS_Y as usize / heads;
    let kv_head = head / (heads / kv_heads);
    let first = CUBE_POS_X as usize * (planes * TILE);
    load::<E, N>(&queries, &mut rows, &of_queries, sample, head, first, time, planes * TILE, width, units);
    load::<E, N>(&gradient, &mut row_gradients, &of_gradient, sample, head, first, time, planes * TILE, width, units);
    sync_cube();
    let row = min(first + unit / 2, time - 1);
    let mut product = 0.0f32;
    let mut part = unit % 2;
    while part < width {
        let of_output =
            Vector::<f32, N>::cast_from(output.read(of_output.of_head(sample, head) + row * of_output.row + part));
        let values = of_output * Vector::cast_from(row_gradients[(unit / 2) * pitch + part]);
        product += values.vector_sum();
        part += 2;
    }
    halves[unit] = product;
    sync_cube();
    let even = unit - unit % 2;
    let product = halves[even] + halves[even + 1];
    let place = (sample * heads + head) * time + row;
    if first + unit / 2 < time && unit & 1 == 0 {
        of_outputs.write(place, product);
    }
    let log_sum = log_sums.read(place);
    let of_row = seen(row, time, count, causal);
    let end = seen(min(first + planes * TILE, time) - 1, time, count, causal);
    let sums = zeros(depth);
    let mut start = 0usize;
    while start < end {
        sync_cube();
        load::<E, N>(&keys, &mut columns, &of_keys, sample, kv_head, start, count, COLUMNS, width, units);
        load::<E, N>(&values, &mut weighted, &of_values, sample, kv_head, start, count, COLUMNS, width, units);
        sync_cube();
        scores::<E, N>(&rows, &columns, &mut products, plane, depth);
        scores::<E, N>(&row_gradients, &weighted, &mut of_weights, plane, depth);
        #[unroll]
        for index in 0..SHARE {
            let (place, column) = share(unit, index);
            let (scores, gradients) = (products[place], of_weights[place]);
            let mut quad = Quad::<E>::new(E::from_int(0));
            #[unroll]
            for value in 0..QUAD {
                let weight = (scores.extract(value) * scale - log_sum).exp();
                let change = weight * (gradients.extract(value) - product) * scale;
                quad.insert(value, E::cast_from(select(start + column + value < of_row, change, 0.0f32)));
            }
            changes[place] = quad;
        }
        sync_plane();
        add_weighted::<E, N>(&changes, &columns, &sums, plane, depth);
        start += COLUMNS;
    }
    write::<E, N>(&sums, &mut products, &mut result, &of_result, sample, head, first, time, plane, depth);
}

/// The gradients of keys and values. A cube takes 16 keys for each of its planes, and all queries of the heads that they serve.
#[cube(launch, address_type = "dynamic")]
pub(super) fn keys_gradient<E: Float, N: Size>(
    queries: LinearView<'_, Vector<E, N>>,
    keys: LinearView<'_, Vector<E, N>>,
    values: LinearView<'_, Vector<E, N>>,
    gradient: LinearView<'_, Vector<E, N>>,
    log_sums: LinearView<'_, f32>,
    of_outputs: LinearView<'_, f32>,
    mut keys_result: LinearViewMut<'_, Vector<E, N>>,
    mut values_result: LinearViewMut<'_, Vector<E, N>>,
    of_queries: Place,
    of_keys: Place,
    of_values: Place,
    of_gradient: Place,
    of_keys_result: Place,
    of_values_result: Place,
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
    let mut row_values = Shared::<[Vector<E, N>]>::new_slice(planes * TILE * pitch);
    let mut columns = Shared::<[Vector<E, N>]>::new_slice(COLUMNS * pitch);
    let mut weighted = Shared::<[Vector<E, N>]>::new_slice(COLUMNS * pitch);
    let mut products = Shared::<[Quad<f32>]>::new_slice(planes * OF_PLANE);
    let mut of_weights = Shared::<[Quad<f32>]>::new_slice(planes * OF_PLANE);
    let mut weights = Shared::<[Quad<E>]>::new_slice(planes * OF_PLANE);
    let mut changes = Shared::<[Quad<E>]>::new_slice(planes * OF_PLANE);
    let mut log_sums_of = Shared::<[f32]>::new_slice(COLUMNS);
    let mut outputs_of = Shared::<[f32]>::new_slice(COLUMNS);
    let plane = UNIT_POS_Y as usize;
    let unit = UNIT_POS as usize;
    let kv_head = CUBE_POS_Y as usize % kv_heads;
    let sample = CUBE_POS_Y as usize / kv_heads;
    let together = heads / kv_heads;
    let first = CUBE_POS_X as usize * (planes * TILE);
    load::<E, N>(&keys, &mut rows, &of_keys, sample, kv_head, first, count, planes * TILE, width, units);
    load::<E, N>(&values, &mut row_values, &of_values, sample, kv_head, first, count, planes * TILE, width, units);
    let row = first + unit / 2;
    let mut begin = 0usize;
    if comptime!(causal) {
        // The first query that sees the first of the keys.
        let position = first + time;
        begin = select(position > count, position - count, 0usize);
        begin = begin - begin % COLUMNS;
    }
    let of_keys_sum = zeros(depth);
    let of_values_sum = zeros(depth);
    let mut member = 0usize;
    while member < together {
        let head = kv_head * together + member;
        let mut start = begin;
        while start < time {
            sync_cube();
            load::<E, N>(&queries, &mut columns, &of_queries, sample, head, start, time, COLUMNS, width, units);
            load::<E, N>(&gradient, &mut weighted, &of_gradient, sample, head, start, time, COLUMNS, width, units);
            if unit < COLUMNS {
                let of_query = (sample * heads + head) * time + min(start + unit, time - 1);
                log_sums_of[unit] = log_sums.read(of_query);
                outputs_of[unit] = of_outputs.read(of_query);
            }
            sync_cube();
            scores::<E, N>(&rows, &columns, &mut products, plane, depth);
            scores::<E, N>(&row_values, &weighted, &mut of_weights, plane, depth);
            #[unroll]
            for index in 0..SHARE {
                let (place, column) = share(unit, index);
                let (scores, gradients) = (products[place], of_weights[place]);
                let mut quad = Quad::<E>::new(E::from_int(0));
                let mut of_change = Quad::<E>::new(E::from_int(0));
                #[unroll]
                for value in 0..QUAD {
                    let column = column + value;
                    let is_seen = start + column < time && row < seen(start + column, time, count, causal);
                    let weight = (scores.extract(value) * scale - log_sums_of[column]).exp();
                    let weight = select(is_seen, weight, 0.0f32);
                    let change = weight * (gradients.extract(value) - outputs_of[column]) * scale;
                    quad.insert(value, E::cast_from(weight));
                    of_change.insert(value, E::cast_from(select(is_seen, change, 0.0f32)));
                }
                weights[place] = quad;
                changes[place] = of_change;
            }
            sync_plane();
            add_weighted::<E, N>(&changes, &columns, &of_keys_sum, plane, depth);
            add_weighted::<E, N>(&weights, &weighted, &of_values_sum, plane, depth);
            start += COLUMNS;
        }
        member += 1;
    }
    write::<E, N>(
        &of_keys_sum,
        &mut products,
        &mut keys_result,
        &of_keys_result,
        sample,
        kv_head,
        first,
        count,
        plane,
        depth,
    );
    write::<E, N>(
        &of_values_sum,
        &mut products,
        &mut values_result,
        &of_values_result,
        sample,
        kv_head,
        first,
        count,
        plane,
        depth,
    );
}
