//! Exact attention on the CPU by blocks: forward with an online softmax, backward by computing each block again
//! (FlashAttention-2, Dao 2023).
//!
//! A task of the forward pass is a span of queries of one head. A task of the backward pass is one head of keys and values with all heads
//! of queries that it serves. No task adds to the results of another one, so that results do not depend on the number of threads.
//!
//! Scratch memory: for each thread the values of [`forward_lengths`](super::cost::forward_lengths) or
//! [`backward_lengths`](super::cost::backward_lengths) in f32, and what gemm packs of blocks that are not whole vectors. With 16-bit inputs, each
//! thread takes the f32 values of one row more. Inputs and gradients whose last dimension does not lie side by side are copied.
//!
//! Multiply-adds: forward 2 batch heads P depth, backward 5 batch heads P depth. P is the number of pairs of query and key in the blocks
//! that are not hidden: time keys without masks, and about time (time + `QUERIES`) / 2 for a causal mask with as many keys as queries.

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Bytes, Shape};
use rayon::prelude::*;

use super::cost::{SPAN, TASK_BYTES};
use super::terms::Sizes;
use super::terms::Terms;
use backward::Saved;
use call::Call;
use grid::{Grid, Heads, readable};
use kiln_operations::by_dtype;
use kiln_operations::cpu::buffers::run_with_buffers;
use kiln_operations::cpu::stored::{Stored, tensor};

mod backward;
mod call;
mod dropout;
mod forward;
mod grid;
mod softmax;

const _: () = assert!(
    size_of::<forward::Task<'_, f32>>() as u64 == TASK_BYTES[0]
        && size_of::<backward::Task<'_, f32>>() as u64 == TASK_BYTES[1]
        || size_of::<usize>() != 8
);

fn packed_sizes(qkv: &FlexTensor, heads: usize) -> Sizes {
    let shape = qkv.shape();
    let depth = shape[2] / 3 / heads;
    Sizes { samples: shape[0], heads, kv_heads: heads, time: shape[1], keys: shape[1], depth }
}

fn grouped_sizes([queries, keys, _]: &[FlexTensor; 3]) -> Sizes {
    let (queries, keys) = (queries.shape(), keys.shape());
    let [samples, heads, time, depth] = queries.dims();
    Sizes { samples, heads, kv_heads: keys[1], time, keys: keys[2], depth }
}

/// Turns values that lie in memory as `[batch, rows, heads, depth]` into a tensor `[batch, heads, rows, depth]`.
fn by_heads<E: Stored>(values: Vec<E>, [samples, heads, rows, depth]: [usize; 4]) -> FlexTensor {
    let layout = Layout::contiguous(Shape::new([samples, rows, heads, depth])).transpose(1, 2);
    FlexTensor::new(Bytes::from_elems(values), layout, E::dtype())
}

/// The output, which lies in memory as `[batch, time, heads, depth]`, and the logarithms of sums.
fn forward<E: Stored>(call: &Call<'_>, inputs: &[Heads<'_, E>; 3]) -> (Vec<E>, FlexTensor) {
    let Sizes { samples, heads, time, depth, .. } = call.sizes;
    let mut out = vec![E::zeroed(); samples * time * heads * depth];
    let mut log_sums = vec![0.0f32; samples * heads * time];
    let mut of_heads = log_sums.chunks_mut(time.max(1));
    let mut tasks = Vec::with_capacity(samples * heads * time.div_ceil(SPAN));
    for (sample, out) in Grid::new(&mut out, heads * depth).row_blocks(time).enumerate() {
        for ((head, out), log_sums) in out.column_blocks(depth).enumerate().zip(&mut of_heads) {
            for (span, (out, log_sums)) in out.row_blocks(SPAN).zip(log_sums.chunks_mut(SPAN)).enumerate() {
                tasks.push(forward::Task { sample, head, first: span * SPAN, out, log_sums });
            }
        }
    }
    let count = tasks.len();
    run_with_buffers(
        tasks.into_par_iter(),
        count,
        || forward::Scratch::new::<E>(call.sizes),
        |scratch, task| {
            forward::forward(call, inputs, task, scratch);
        },
    );
    (out, tensor(log_sums, Shape::new([samples, heads, time])))
}

pub(super) fn packed_forward(qkv: &FlexTensor, terms: &Terms<Flex>) -> [FlexTensor; 2] {
    fn run<E: Stored>(qkv: &FlexTensor, terms: &Terms<Flex>) -> [FlexTensor; 2] {
        let call = Call::new(packed_sizes(qkv, terms.settings.heads), terms);
        let Sizes { samples, heads, time, depth, .. } = call.sizes;
        let qkv = readable(qkv);
        let inputs = [0, 1, 2].map(|part| Heads::<E>::packed(&qkv, part * heads * depth, depth));
        let (out, log_sums) = forward(&call, &inputs);
        [tensor(out, Shape::new([samples, time, heads * depth])), log_sums]
    }
    by_dtype!(qkv.dtype(), E => run::<E>(qkv, terms), else [qkv.clone(), qkv.clone()])
}

pub(super) fn grouped_forward(inputs: &[FlexTensor; 3], terms: &Terms<Flex>) -> [FlexTensor; 2] {
    fn run<E: Stored>(inputs: &[FlexTensor; 3], terms: &Terms<Flex>) -> [FlexTensor; 2] {
        let call = Call::new(grouped_sizes(inputs), terms);
        let Sizes { samples, heads, time, depth, .. } = call.sizes;
        let inputs = inputs.each_ref().map(readable);
        let (out, log_sums) = forward(&call, &inputs.each_ref().map(Heads::<E>::separate));
        [by_heads(out, [samples, heads, time, depth]), log_sums]
    }
    by_dtype!(inputs[0].dtype(), E => run::<E>(inputs, terms), else [inputs[0].clone(), inputs[0].clone()])
}

fn run_backward<E: Stored>(call: &Call<'_>, saved: &Saved<'_, E>, tasks: Vec<backward::Task<'_, E>>) {
    let count = tasks.len();
    run_with_buffers(
        tasks.into_par_iter(),
        count,
        || backward::Scratch::new::<E>(call.sizes),
        |scratch, task| {
            backward::backward(call, saved, task, scratch);
        },
    );
}

/// The gradient of packed inputs. `saved` has input, output and logarithms of sums.
pub(super) fn packed_backward(saved: &[FlexTensor; 3], gradient: &FlexTensor, terms: &Terms<Flex>) -> FlexTensor {
    fn run<E: Stored>(
        [qkv, out, log_sums]: &[FlexTensor; 3],
        gradient: &FlexTensor,
        terms: &Terms<Flex>,
    ) -> FlexTensor {
        let call = Call::new(packed_sizes(qkv, terms.settings.heads), terms);
        let Sizes { samples, heads, time, depth, .. } = call.sizes;
        let width = heads * depth;
        let [qkv, out, gradient] = [qkv, out, gradient].map(readable);
        let saved = Saved {
            inputs: [0, 1, 2].map(|part| Heads::<E>::packed(&qkv, part * width, depth)),
            out: Heads::packed(&out, 0, depth),
            log_sums: log_sums.storage(),
            gradient: Heads::packed(&gradient, 0, depth),
        };
        let mut gradients = vec![E::zeroed(); samples * time * 3 * width];
        let mut tasks = Vec::with_capacity(samples * heads);
        for (sample, rows) in Grid::new(&mut gradients, 3 * width).row_blocks(time).enumerate() {
            let [of_queries, rest] = rows.split_columns(width);
            let [of_keys, of_values] = rest.split_columns(width);
            let keys_and_values = of_keys.column_blocks(depth).zip(of_values.column_blocks(depth));
            for (kv_head, (of_queries, (of_keys, of_values))) in
                of_queries.column_blocks(depth).zip(keys_and_values).enumerate()
            {
                let gradients = [of_queries, of_keys, of_values].map(Some);
                tasks.push(backward::Task { sample, kv_head, gradients });
            }
        }
        run_backward(&call, &saved, tasks);
        tensor(gradients, qkv.shape())
    }
    by_dtype!(saved[0].dtype(), E => run::<E>(saved, gradient, terms), else gradient.clone())
}

/// The gradients of queries, keys and values that are wanted. `saved` has output and logarithms of sums.
pub(super) fn grouped_backward(
    inputs: &[FlexTensor; 3],
    saved: &[FlexTensor; 2],
    gradient: &FlexTensor,
    terms: &Terms<Flex>,
    wanted: [bool; 3],
) -> [Option<FlexTensor>; 3] {
    fn run<E: Stored>(
        inputs: &[FlexTensor; 3],
        [out, log_sums]: &[FlexTensor; 2],
        gradient: &FlexTensor,
        terms: &Terms<Flex>,
        wanted: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let call = Call::new(grouped_sizes(inputs), terms);
        let Sizes { samples, heads, kv_heads, time, keys, depth } = call.sizes;
        let inputs = inputs.each_ref().map(readable);
        let [out, gradient] = [out, gradient].map(readable);
        let saved = Saved {
            inputs: inputs.each_ref().map(Heads::<E>::separate),
            out: Heads::separate(&out),
            log_sums: log_sums.storage(),
            gradient: Heads::separate(&gradient),
        };
        let shapes = [(heads, time), (kv_heads, keys), (kv_heads, keys)];
        let mut gradients: [Vec<E>; 3] = [0, 1, 2].map(|input| {
            let (heads, rows) = shapes[input];
            vec![E::zeroed(); if wanted[input] { samples * rows * heads * depth } else { 0 }]
        });
        let [of_queries, of_keys, of_values] = &mut gradients;
        let mut parts = [
            blocks(of_queries, time, heads * depth, heads / kv_heads * depth),
            blocks(of_keys, keys, kv_heads * depth, depth),
            blocks(of_values, keys, kv_heads * depth, depth),
        ];
        let mut tasks = Vec::with_capacity(samples * kv_heads);
        for (sample, kv_head) in (0..samples).flat_map(|sample| (0..kv_heads).map(move |head| (sample, head))) {
            let gradients = parts.each_mut().map(Iterator::next);
            tasks.push(backward::Task { sample, kv_head, gradients });
        }
        drop(parts);
        run_backward(&call, &saved, tasks);
        let mut results =
            gradients.into_iter().zip(shapes).zip(wanted).map(|((values, (heads, rows)), wanted)| {
                wanted.then(|| by_heads(values, [samples, heads, rows, depth]))
            });
        [(); 3].map(|()| results.next().flatten())
    }
    by_dtype!(
        inputs[0].dtype(),
        E => run::<E>(inputs, saved, gradient, terms, wanted),
        else [(); 3].map(|()| None)
    )
}

/// Divides each sample into blocks of columns.
fn blocks<E>(values: &mut [E], rows: usize, columns: usize, width: usize) -> impl Iterator<Item = Grid<'_, E>> {
    Grid::new(values, columns).row_blocks(rows).flat_map(move |grid| grid.column_blocks(width))
}
