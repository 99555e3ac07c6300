//! A step whose gradients and optimizer state are in a store, and the parameters of its streamed segments.
//!
//! A recorded step has all of them as tensors that exist throughout. In such a step, the parameters of a streamed segment are in memory
//! while the segment runs. A gradient that an operation of Kiln's makes goes to the store at once, and others at the end of the segment's backward
//! pass; what it is added to is read one part at a time. The update has one parameter in memory at a time.

use std::collections::BTreeSet;
use std::ops::Range;

use burn::tensor::DType;

use crate::trace::{StepTrace, TraceRole};

use super::memory::{Block, tensors_of};
use super::offloaded::uses;

/// Copies of a parameter that an update in a store needs: its value and its gradient.
const VALUES: u64 = 2;
/// Copies of a parameter's state that an update in a store needs: as it was read, as the optimizer has it, and as it is written.
const STATES: u64 = 3;

/// A streamed segment.
struct Segment<'a> {
    parameters: BTreeSet<&'a str>,
    forward: Range<usize>,
    /// The operations of its second pass and of its backward pass.
    backward: Range<usize>,
}

/// Divides the lifetimes of `blocks`, and replaces the recorded update. `streamed` are the blocks of the streamed segments.
pub(super) fn divide(
    trace: &StepTrace,
    streamed: &[Range<usize>],
    blocks: &mut Vec<Block>,
    workspaces: &mut [u64],
    next: &[u32],
) {
    let [start, _, update, end] = trace.phases;
    let segments = segments(trace, streamed);
    let used = uses(trace);
    let is_narrow = |tensor: &u32| {
        let tensor = &trace.tensors[*tensor as usize];
        tensor.role == TraceRole::Parameter && tensor.dtype != DType::F32
    };
    let narrow = (0..trace.tensors.len() as u32).filter(is_narrow).filter_map(|tensor| trace.path_of(tensor as usize));
    let narrow: BTreeSet<&str> = narrow.collect();
    // The bytes of a parameter that an update has in memory.
    let in_memory = |path: Option<&str>, bytes: u64| {
        path.and_then(|path| trace.part_in_store(path)).map_or(bytes, |part| bytes.min(part))
    };
    let (mut divided, mut state, mut learned, mut largest) = (vec![], 0, 0, 0);
    for block in blocks.iter().filter(|block| block.dies as usize >= start) {
        let tensors = || tensors_of(block, next);
        let of_role = |role| tensors().find(|tensor| trace.tensors[*tensor as usize].role == role);
        let (parameter, gradient) = (of_role(TraceRole::Parameter), of_role(TraceRole::Gradient));
        if (block.born as usize) >= update || of_role(TraceRole::Updated).is_some() && parameter.is_none() {
            continue;
        }
        let path = parameter.or(gradient).and_then(|tensor| trace.path_of(tensor as usize));
        if path.is_some_and(|path| trace.by_rows.contains_key(path)) {
            continue;
        }
        let place = segments.iter().position(|segment| path.is_some_and(|path| segment.parameters.contains(path)));
        if parameter.is_some() {
            if tensors().any(|tensor| used[tensor as usize].is_some_and(|(_, last)| last >= update)) {
                // A parameter in bf16 is updated in f32.
                let of_f32s = parameter.map_or(0, |tensor| 4 / trace.tensors[tensor as usize].dtype.size() as u64);
                learned += block.bytes * of_f32s;
                largest = largest.max(in_memory(path, block.bytes * of_f32s));
            }
            match place {
                Some(_) => divided.extend(visits(&segments, path.unwrap_or_default()).map(|visit| Block {
                    born: visit.start as u32,
                    dies: visit.end as u32 - 1,
                    ..*block
                })),
                None => divided.push(*block),
            }
        } else if gradient.is_some() {
            let Some(place) = place else {
                divided.push(Block { dies: (update as u32 - 1).max(block.born), ..*block });
                continue;
            };
            let (first, end) = (segments[place].backward.start as u32, segments[place].backward.end as u32 - 1);
            // The operation that makes the gradient or adds it to its sum, which exists before.
            let is_sum = !segments[place].backward.contains(&(block.born as usize));
            let read = tensors().filter_map(|tensor| used[tensor as usize]).map(|(first, _)| first as u32).min();
            let at = if is_sum { read.unwrap_or(first) } else { block.born };
            // That of a parameter in 16 bits is widened when the segment is done.
            let widened = is_sum && path.is_some_and(|path| narrow.contains(path));
            let goes_at_once = !widened && is_made_by_kiln(trace, at as usize);
            // An operation that adds rows in their order has the whole sum.
            let in_order = is_sum && goes_at_once && is_kilns(trace, at as usize);
            // Only the part of the sum that is added; where the gradient stays, the sum stands for it.
            let of_part = is_sum && goes_at_once && !in_order;
            let bytes = if of_part { in_memory(path, block.bytes) } else { block.bytes };
            let (born, dies) = match (widened, goes_at_once) {
                (true, _) => (end, end),
                (false, false) => (at, end),
                // The operation may make other gradients before this one goes.
                (false, true) => (at, if of_part { at } else { at + 1 }),
            };
            divided.push(Block { born, dies: dies.max(born), bytes, ..*block });
        } else {
            let first = tensors().filter_map(|tensor| used[tensor as usize]).map(|(first, _)| first).min();
            match (block.born as usize) < start && first.is_none_or(|first| first >= update) {
                true => state += block.bytes,
                false => divided.push(Block { dies: block.dies.min(update as u32 - 1), ..*block }),
            }
        }
    }
    *blocks = divided;
    let largest = trace.by_rows.values().copied().fold(largest, u64::max);
    let of_largest = (largest as f64 * state as f64 / (learned.max(1)) as f64) as u64;
    workspaces[update..end].fill(VALUES * largest + STATES * of_largest);
}

/// The operations during which a streamed parameter is in memory.
fn visits<'a>(segments: &'a [Segment<'a>], path: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    let of = segments.iter().filter(move |segment| segment.parameters.contains(path));
    of.flat_map(|segment| [segment.forward.clone(), segment.backward.clone()])
}

fn segments<'a>(trace: &'a StepTrace, streamed: &[Range<usize>]) -> Vec<Segment<'a>> {
    let [_, backward, update, _] = trace.phases;
    let (all, readers) = (trace.trained_only_by(streamed), trace.readers());
    let mut segments = vec![];
    for blocks in streamed {
        let mut parameters = trace.trained_only_by(std::slice::from_ref(blocks));
        // Parameters of several streamed segments are in each of them.
        parameters.extend(all.iter().filter(|path| readers[*path].iter().any(|block| blocks.contains(block))));
        let uses = |index: &usize| {
            let read = trace.graph.inputs_at(*index).iter().map(|input| input.tensor);
            let is_own = |tensor: u32| {
                let role = trace.tensors[tensor as usize].role;
                let path = trace.path_of(tensor as usize);
                matches!(role, TraceRole::Parameter | TraceRole::Gradient)
                    && path.is_some_and(|path| parameters.contains(path))
            };
            let is_sum = trace.graph.inputs_at(*index).len() > 1
                && read.clone().all(|tensor| trace.tensors[tensor as usize].role == TraceRole::Gradient);
            // Gradients in 16 bits are added to their sums in the store, whenever a step in memory adds them.
            !is_sum && read.chain(trace.graph.outputs_at(*index).iter().copied()).any(is_own)
        };
        let mut used = (backward..update).filter(uses);
        let first = used.next().unwrap_or(backward);
        let last = used.next_back().unwrap_or(first);
        let forward = trace.cuts[blocks.start]..trace.cuts[blocks.end];
        segments.push(Segment { forward, backward: first..last + 1, parameters });
    }
    segments
}

/// Whether a gradient that the operation `index` makes, or adds to a sum, comes from an operation of Kiln's.
fn is_made_by_kiln(trace: &StepTrace, index: usize) -> bool {
    let is_own = |index: usize| is_kilns(trace, index);
    let reads = trace.graph.inputs_at(index);
    // What is added was made shortly before.
    let maker = |tensor: u32| (0..index).rev().find(|index| trace.graph.outputs_at(*index).contains(&tensor));
    is_own(index) || reads.len() == 2 && reads.iter().filter_map(|read| maker(read.tensor)).any(is_own)
}

pub(super) fn is_kilns(trace: &StepTrace, index: usize) -> bool {
    trace.graph.kind(trace.graph.operations[index]).short().starts_with("kiln::")
}
