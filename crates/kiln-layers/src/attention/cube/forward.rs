//! The forward pass of attention in CubeCL.
//!
//! A cube takes 16 queries for each of its planes, and goes twice over the keys that they see: first for the sum of the exponentials of
//! each query's scores (as Milakov and Gimelshein 2018 do in one pass), then for the weighted sum of the values. So the sums on the
//! tensor cores are never rescaled. Scores stay in shared memory (Dao et al. 2022).

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::pairs::Pairs;
use super::sums::{add_weighted, scores, write, zeros};
use super::tiles::{COLUMNS, Form, OF_PLANE, Place, QUAD, Quad, SHARE, load, share};

#[cube(launch, address_type = "dynamic")]
pub(super) fn attend<E: Float, S: Float, B: Int, N: Size>(
    queries: LinearView<'_, Vector<E, N>>,
    keys: LinearView<'_, Vector<E, N>>,
    values: LinearView<'_, Vector<E, N>>,
    mut output: LinearViewMut<'_, Vector<E, N>>,
    mut log_sums: LinearViewMut<'_, f32>,
    of_queries: Place,
    of_keys: Place,
    of_values: Place,
    of_output: Place,
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
    let mut columns = Shared::<[Vector<S, N>]>::new_slice(COLUMNS * pitch);
    let mut weighted = Shared::<[Vector<S, N>]>::new_slice(COLUMNS * pitch);
    let mut products = Shared::<[Quad<f32>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut weights = Shared::<[Quad<S>]>::new_slice(comptime!(form.planes * OF_PLANE));
    let mut largest_of = Shared::<[f32]>::new_slice(comptime!(form.units()));
    let mut sum_of = Shared::<[f32]>::new_slice(comptime!(form.units()));
    let unit = UNIT_POS as usize;
    let head = CUBE_POS_Y as usize % heads;
    let sample = CUBE_POS_Y as usize / heads;
    let kv_head = head / (heads / kv_heads);
    let first = CUBE_POS_X as usize * comptime!(form.rows());
    load::<E, S, N>(&queries, &mut rows, &of_queries, sample, head, first, time, comptime!(form.rows()), form);
    let end = pairs.seen(sample, min(first + comptime!(form.rows()), time) - 1, time, count, form.causal);
    // Each unit has half of the columns of a row.
    let row = first + unit / 2;
    let query = min(row, time - 1);
    let of_row = pairs.seen(sample, query, time, count, form.causal);
    let from = pairs.first(query, time, count, form.windowed);
    let begin = pairs.first(first, time, count, form.windowed);
    let begin = begin - begin % COLUMNS;
    let of_query = pairs.of_query(pairs.of_head(sample * heads + head), query);
    let mut largest = f32::min_value();
    let mut sum = 0.0f32;
    let mut start = begin;
    while start < end {
        sync_cube();
        load::<E, S, N>(&keys, &mut columns, &of_keys, sample, kv_head, start, count, COLUMNS, form);
        sync_cube();
        scores::<S, N>(&rows, &columns, &mut products, form);
        let mut of_all = largest;
        #[unroll]
        for index in 0..SHARE {
            let (place, column) = share(unit, index);
            let scores = products[place];
            #[unroll]
            for value in 0..QUAD {
                let key = start + column + value;
                let is_seen = key >= from && key < of_row && pairs.shows(sample, head, query, min(key, count - 1));
                of_all = max(of_all, select(is_seen, scores.extract(value) * scale, f32::min_value()));
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
                let key = start + column + value;
                let is_seen = key >= from && key < of_row && pairs.shows(sample, head, query, min(key, count - 1));
                sum += select(is_seen, (scores.extract(value) * scale - largest).exp(), 0.0f32);
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
    // No sum is 0 if the query sees a key.
    let log_sum = select(sum == 0.0, 0.0f32, largest + sum.ln());
    if row < time && unit & 1 == 0 {
        log_sums.write((sample * heads + head) * time + row, log_sum);
    }
    let mut sums = zeros::<N>(form.depth, form);
    let mut start = begin;
    while start < end {
        sync_cube();
        load::<E, S, N>(&keys, &mut columns, &of_keys, sample, kv_head, start, count, COLUMNS, form);
        load::<E, S, N>(&values, &mut weighted, &of_values, sample, kv_head, start, count, COLUMNS, form);
        sync_cube();
        scores::<S, N>(&rows, &columns, &mut products, form);
        #[unroll]
        for index in 0..SHARE {
            let (place, column) = share(unit, index);
            let scores = products[place];
            let mut quad = Quad::<S>::new(S::from_int(0));
            #[unroll]
            for value in 0..QUAD {
                let key = start + column + value;
                let is_seen = key >= from && key < of_row && pairs.shows(sample, head, query, min(key, count - 1));
                let weight = (scores.extract(value) * scale - log_sum).exp() * pairs.factor(of_query, key);
                quad.insert(value, S::cast_from(select(is_seen, weight, 0.0f32)));
            }
            weights[place] = quad;
        }
        sync_plane();
        add_weighted::<S, N>(&weights, &weighted, &mut sums, form);
        start += COLUMNS;
    }
    write::<E, N>(&sums, &mut products, &mut output, &of_output, sample, head, first, time, form);
}
