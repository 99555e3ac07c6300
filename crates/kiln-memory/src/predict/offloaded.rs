//! Optimizer state that a device holds only while a parameter is updated.
//!
//! A recorded step has the optimizer's state as tensors that exist before and after it. kiln-optimizers' `Offloaded` records where a
//! chunk's state is copied to the device, and where its new state has left it: `kiln::state_from_host` and `kiln::state_to_host`. The
//! n-th of one belongs to the n-th of the other.

use crate::trace::{StepTrace, TraceRole};

use super::memory::{Block, tensors_of};

/// Shortens the lifetimes of blocks whose tensors are used only between two marks, on a device with memory of its own.
pub(super) fn shorten(trace: &StepTrace, blocks: &mut [Block], next: &[u32]) {
    let marks = |name: &str| {
        let operations = 0..trace.graph.operations.len();
        operations.filter(|index| trace.graph.kind_at(*index).short() == name).collect::<Vec<_>>()
    };
    let (from, to) = (marks("kiln::state_from_host"), marks("kiln::state_to_host"));
    if to.is_empty() {
        return;
    }
    let uses = uses(trace);
    for block in blocks {
        let tensors = || tensors_of(block, next).map(|tensor| tensor as usize);
        if tensors().any(|tensor| trace.tensors[tensor].role != TraceRole::Other) {
            continue;
        }
        let used = tensors().filter_map(|tensor| uses[tensor]).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        let Some((first, last)) = used else { continue };
        let end = to.partition_point(|end| *end < last);
        let (Some(begin), Some(end)) = (from.get(end), to.get(end)) else { continue };
        if (*begin..*end).contains(&first) {
            block.born = block.born.max(*begin as u32);
            block.dies = block.dies.min(*end as u32);
        }
    }
}

/// The first and the last operation of the step that reads or makes each tensor; `None` for tensors that the step does not use.
pub(super) fn uses(trace: &StepTrace) -> Vec<Option<(usize, usize)>> {
    let mut uses: Vec<Option<(usize, usize)>> = vec![None; trace.tensors.len()];
    for index in trace.phases[0]..trace.graph.operations.len() {
        let inputs = trace.graph.inputs_at(index).iter().map(|input| input.tensor);
        for tensor in inputs.chain(trace.graph.outputs_at(index).iter().copied()) {
            let first = uses[tensor as usize].map_or(index, |(first, _)| first);
            uses[tensor as usize] = Some((first, index));
        }
    }
    uses
}
