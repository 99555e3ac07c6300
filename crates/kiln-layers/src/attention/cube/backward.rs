//! The backward pass of attention in CubeCL: one launch for the queries, one for keys and values. Weights are computed again from the
//! logarithms of their sums (Dao et al. 2022). No sum depends on the order in which cubes run.

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::pairs::Pairs;
use super::sums::{add_weighted, scores, write, zeros};
use super::tiles::{COLUMNS, Form, OF_PLANE, Place, QUAD, Quad, SHARE, load, share};

/// The gradient of the queries, and the product of each query's output with its gradient.
#[cube(launch, address_type = "dynamic")]
pub(super) fn queries_gradient<E: Float, S: Float, B: Int, N: Size>(
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
    pairs: Pairs<'_, B>,
    heads: usize,
    kv_heads: usize,
    time: usize,
    count: usize,
    scale: f32,
    #[comptime] form: Form,
    #[define(E, S, B)] _dtypes: [ElemType; 3],
) {
    let vector = N::value();
    let pitch = comptime!(form.pitch(vector));
    let mut rows = Shared::<[Vector<S, N>]>::new_slice(comptime!(form.rows() * pitch));
    let mut row_gradients = Shared::<[Vector<S, N>]>::new_slice(comptime!(form.rows() * pitch));
    let mut columns = Shared::<[Vector<S, N>]>::new_slice(COLUMNS * pitch);
    let mut weighted = Shared::<[Vector<S, N>]>::new_slice(COLUMNS * pitch);
    let mut products = Shared::<[Quad<f32>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut of_weights = Shared::<[Quad<f32>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut changes = Shared::<[Quad<S>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut halves = Shared::<[f32]>::new_slice(comptime!(form.units()));
    let unit = UNIT_POS as usize;
    let head = CUBE_POS_Y as usize % heads;
    let sample = CUBE_POS_Y as usize / heads;
    let kv_head = head / (heads / kv_heads);
    let first = CUBE_POS_X as usize * comptime!(form.rows());
    load::<E, S, N>(&queries, &mut rows, &of_queries, sample, head, first, time, comptime!(form.rows()), form);
    load::<E, S, N>(
        &gradient,
        &mut row_gradients,
        &of_gradient,
        sample,
        head,
        first,
        time,
        comptime!(form.rows()),
        form,
    );
    sync_cube();
    let row = min(first + unit / 2, time - 1);
    let mut product = 0.0f32;
    let mut part = unit % 2;
    while part < comptime!(form.depth / vector) {
        let of_output = output.read(of_output.of_head(sample, head) + row * of_output.row + part);
        let of_gradient = gradient.read(of_gradient.of_head(sample, head) + row * of_gradient.row + part);
        let values = Vector::<f32, N>::cast_from(of_output) * Vector::cast_from(of_gradient);
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
    let of_row = pairs.seen(sample, row, time, count, form.causal);
    let from = pairs.first(row, time, count, form.windowed);
    let of_query = pairs.of_query(pairs.of_head(sample * heads + head), row);
    let end = pairs.seen(sample, min(first + comptime!(form.rows()), time) - 1, time, count, form.causal);
    let mut sums = zeros::<N>(form.depth, form);
    let mut start = pairs.first(first, time, count, form.windowed);
    start -= start % COLUMNS;
    while start < end {
        sync_cube();
        load::<E, S, N>(&keys, &mut columns, &of_keys, sample, kv_head, start, count, COLUMNS, form);
        load::<E, S, N>(&values, &mut weighted, &of_values, sample, kv_head, start, count, COLUMNS, form);
        sync_cube();
        scores::<S, N>(&rows, &columns, &mut products, form);
        scores::<S, N>(&row_gradients, &weighted, &mut of_weights, form);
        #[unroll]
        for index in 0..SHARE {
            let (place, column) = share(unit, index);
            let (scores, gradients) = (products[place], of_weights[place]);
            let mut quad = Quad::<S>::new(S::from_int(0));
            #[unroll]
            for value in 0..QUAD {
                let key = start + column + value;
                let is_seen = key >= from && key < of_row && pairs.shows(sample, head, row, min(key, count - 1));
                let weight = (scores.extract(value) * scale - log_sum).exp();
                let change = weight * (gradients.extract(value) * pairs.factor(of_query, key) - product) * scale;
                quad.insert(value, S::cast_from(select(is_seen, change, 0.0f32)));
            }
            changes[place] = quad;
        }
        sync_plane();
        add_weighted::<S, N>(&changes, &columns, &mut sums, form);
        start += COLUMNS;
    }
    write::<E, N>(&sums, &mut products, &mut result, &of_result, sample, head, first, time, form);
}

/// The gradients of keys and values. A cube takes 16 keys for each of its planes, and all queries of the heads that they serve.
#[cube(launch, address_type = "dynamic")]
pub(super) fn keys_gradient<E: Float, S: Float, B: Int, N: Size>(
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
    pairs: Pairs<'_, B>,
    heads: usize,
    kv_heads: usize,
    time: usize,
    count: usize,
    scale: f32,
    #[comptime] form: Form,
    #[define(E, S, B)] _dtypes: [ElemType; 3],
) {
    let vector = N::value();
    let pitch = comptime!(form.pitch(vector));
    let mut rows = Shared::<[Vector<S, N>]>::new_slice(comptime!(form.rows() * pitch));
    let mut row_values = Shared::<[Vector<S, N>]>::new_slice(comptime!(form.rows() * pitch));
    let mut columns = Shared::<[Vector<S, N>]>::new_slice(COLUMNS * pitch);
    let mut weighted = Shared::<[Vector<S, N>]>::new_slice(COLUMNS * pitch);
    let mut products = Shared::<[Quad<f32>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut of_weights = Shared::<[Quad<f32>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut weights = Shared::<[Quad<S>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut changes = Shared::<[Quad<S>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut log_sums_of = Shared::<[f32]>::new_slice(COLUMNS);
    let mut outputs_of = Shared::<[f32]>::new_slice(COLUMNS);
    let unit = UNIT_POS as usize;
    let kv_head = CUBE_POS_Y as usize % kv_heads;
    let sample = CUBE_POS_Y as usize / kv_heads;
    let together = heads / kv_heads;
    let first = CUBE_POS_X as usize * comptime!(form.rows());
    load::<E, S, N>(&keys, &mut rows, &of_keys, sample, kv_head, first, count, comptime!(form.rows()), form);
    load::<E, S, N>(&values, &mut row_values, &of_values, sample, kv_head, first, count, comptime!(form.rows()), form);
    let row = first + unit / 2;
    let mut begin = 0usize;
    if comptime!(form.causal) {
        // The first query that sees the first of the keys.
        let position = first + time;
        begin = select(position > count, position - count, 0usize);
        begin = begin - begin % COLUMNS;
    }
    let end = pairs.last_query(first + comptime!(form.rows()) - 1, time, count, form.windowed);
    let mut of_keys_sum = zeros::<N>(form.depth, form);
    let mut of_values_sum = zeros::<N>(form.depth, form);
    let mut member = 0usize;
    while member < together {
        let head = kv_head * together + member;
        let of_head = pairs.of_head(sample * heads + head);
        let mut start = begin;
        while start < end {
            sync_cube();
            load::<E, S, N>(&queries, &mut columns, &of_queries, sample, head, start, time, COLUMNS, form);
            load::<E, S, N>(&gradient, &mut weighted, &of_gradient, sample, head, start, time, COLUMNS, form);
            if unit < COLUMNS {
                let of_query = (sample * heads + head) * time + min(start + unit, time - 1);
                log_sums_of[unit] = log_sums.read(of_query);
                outputs_of[unit] = of_outputs.read(of_query);
            }
            sync_cube();
            scores::<S, N>(&rows, &columns, &mut products, form);
            scores::<S, N>(&row_values, &weighted, &mut of_weights, form);
            #[unroll]
            for index in 0..SHARE {
                let (place, column) = share(unit, index);
                let (scores, gradients) = (products[place], of_weights[place]);
                let mut quad = Quad::<S>::new(S::from_int(0));
                let mut of_change = Quad::<S>::new(S::from_int(0));
                #[unroll]
                for value in 0..QUAD {
                    let (column, query) = (column + value, start + column + value);
                    let sees = query < time
                        && row < pairs.seen(sample, query, time, count, form.causal)
                        && row >= pairs.first(query, time, count, form.windowed);
                    let is_seen = sees && pairs.shows(sample, head, min(query, time - 1), min(row, count - 1));
                    let weight = (scores.extract(value) * scale - log_sums_of[column]).exp();
                    let weight = select(is_seen, weight, 0.0f32);
                    let factor = pairs.factor(pairs.of_query(of_head, query), row);
                    let change = weight * (gradients.extract(value) * factor - outputs_of[column]) * scale;
                    quad.insert(value, S::cast_from(weight * factor));
                    of_change.insert(value, S::cast_from(select(is_seen, change, 0.0f32)));
                }
                weights[place] = quad;
                changes[place] = of_change;
            }
            sync_plane();
            add_weighted::<S, N>(&changes, &columns, &mut of_keys_sum, form);
            add_weighted::<S, N>(&weights, &weighted, &mut of_values_sum, form);
            start += COLUMNS;
        }
        member += 1;
    }
    write::<E, N>(&of_keys_sum, &mut products, &mut keys_result, &of_keys_result, sample, kv_head, first, count, form);
    write::<E, N>(
        &of_values_sum,
        &mut products,
        &mut values_result,
        &of_values_result,
        sample,
        kv_head,
        first,
        count,
        form,
    );
}
