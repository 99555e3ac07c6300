//! A step whose gradients and optimizer state are in a store, and the parameters of its streamed segments.
//!
//! A recorded step has all of them as tensors that exist throughout. In such a step, the parameters of a streamed segment are in memory
//! while the segment runs, and while the one before it runs forward, because they are read ahead. Their gradients, with the sums that these are
//! added to, are there during the segment's backward pass. The update has one parameter in memory at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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
    /// The first operation that makes a gradient: sums are read before.
    sums: usize,
}

/// Divides the lifetimes of `blocks`, and replaces the recorded update. `streamed` are the blocks of the streamed segments. `on_host`: whether
/// tensors are in the host's memory, from which they are written.
pub(super) fn divide(
    trace: &StepTrace,
    streamed: &[Range<usize>],
    blocks: &mut Vec<Block>,
    workspaces: &mut [u64],
    next: &[u32],
    on_host: bool,
) {
    let [start, _, update, end] = trace.phases;
    let segments = segments(trace, streamed);
    let used = uses(trace);
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
                learned += block.bytes;
                largest = largest.max(block.bytes);
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
            let pass = place.map_or(start..update, |place| segments[place].sums..segments[place].backward.end);
            let born = if place.is_some() { block.born.max(pass.start as u32) } else { block.born };
            divided.push(Block { born, dies: (pass.end as u32 - 1).max(born), ..*block });
        } else {
            let first = tensors().filter_map(|tensor| used[tensor as usize]).map(|(first, _)| first).min();
            match (block.born as usize) < start && first.is_none_or(|first| first >= update) {
                true => state += block.bytes,
                false => divided.push(Block { dies: block.dies.min(update as u32 - 1), ..*block }),
            }
        }
    }
    // When the values of a segment are gone, its gradients are written. On the CPU they exist until they are, at the latest when the next
    // segment reads sums.
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for block in divided.iter().filter(|_| on_host) {
        let gradient = |tensor: &u32| trace.tensors[*tensor as usize].role == TraceRole::Gradient;
        let path = tensors_of(block, next).find(gradient).and_then(|tensor| trace.path_of(tensor as usize));
        let bytes = sums.entry(path.unwrap_or_default()).or_default();
        *bytes = block.bytes.max(*bytes);
    }
    for segment in segments.iter().filter(|segment| segment.backward.end < update) {
        let written: u64 = segment.parameters.iter().filter_map(|path| sums.get(path)).sum();
        let later = segments.iter().filter(|other| other.backward.start >= segment.backward.end);
        let until = later.map(|other| other.sums).min().unwrap_or(update);
        for workspace in &mut workspaces[segment.backward.end..until.max(segment.backward.end + 1)] {
            *workspace += written;
        }
    }
    *blocks = divided;
    let largest = trace.by_rows.values().copied().fold(largest, u64::max);
    let largest = trace.part.map_or(largest, |part| largest.min(part));
    let of_largest = (largest as f64 * state as f64 / (learned.max(1)) as f64) as u64;
    workspaces[update..end].fill(VALUES * largest + STATES * of_largest);
}

/// The operations during which a streamed parameter is in memory.
fn visits<'a>(segments: &'a [Segment<'a>], path: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    let of = segments.iter().enumerate().filter(move |(_, segment)| segment.parameters.contains(path));
    of.flat_map(|(index, segment)| {
        let before = index.checked_sub(1).map(|before| segments[before].forward.clone());
        let ahead = before.filter(|before| before.end == segment.forward.start);
        let forward = ahead.map_or(segment.forward.start, |ahead| ahead.start)..segment.forward.end;
        // In the backward pass it is read when the values of the segment behind it are gone.
        [forward, segment.backward.clone()]
    })
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
            read.chain(trace.graph.outputs_at(*index).iter().copied()).any(is_own)
        };
        let mut used = (backward..update).filter(uses);
        let first = used.next().unwrap_or(backward);
        let last = used.next_back().unwrap_or(first);
        let makes = |index: &usize| {
            trace.graph.outputs_at(*index).iter().any(|tensor| {
                trace.tensors[*tensor as usize].role == TraceRole::Gradient
                    && trace.path_of(*tensor as usize).is_some_and(|path| parameters.contains(path))
            })
        };
        let sums = (first..last).find(makes).unwrap_or(first);
        let forward = trace.cuts[blocks.start]..trace.cuts[blocks.end];
        segments.push(Segment { forward, backward: first..last + 1, sums, parameters });
    }
    segments
}
