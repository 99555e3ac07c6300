//! The last operation until which each tensor of a step is held.

use crate::trace::{StepTrace, TraceRole};

/// The last operation at which each tensor is alive.
///
/// The recorder notes when the last handle is passed to an operation, but not when one is dropped. So a tensor counts as dropped after
/// its last use, except for the results of a step: parameters and optimizer state.
pub(super) fn ends(trace: &StepTrace) -> Vec<u32> {
    let [start, _, update, end] = trace.phases;
    let tensors = trace.tensors.len();
    let mut ends = vec![0u32; tensors];
    let mut consumed = vec![false; tensors];
    let mut born = vec![0u32; tensors];
    for (index, operation) in trace.graph.operations.iter().enumerate() {
        for input in trace.graph.inputs(*operation) {
            ends[input.tensor as usize] = index as u32;
            consumed[input.tensor as usize] |= input.last;
        }
        for output in trace.graph.outputs(*operation) {
            (ends[*output as usize], born[*output as usize]) = (index as u32, index as u32);
        }
    }
    for (tensor, info) in trace.tensors.iter().enumerate() {
        if consumed[tensor] && info.role != TraceRole::Updated {
            continue;
        }
        let last_use = ends[tensor] as usize;
        // Old tensors that the update reads are held until all new tensors of their chunk are made.
        let released = if last_use < update { None } else { trace.releases.iter().find(|place| **place >= last_use) };
        ends[tensor] = match (info.role, released) {
            (TraceRole::Updated, _) => end,
            (TraceRole::Parameter | TraceRole::Gradient, Some(place)) => *place,
            (_, Some(place)) if (born[tensor] as usize) < start => *place,
            (TraceRole::Parameter, None) => end,
            _ if born[tensor] as usize >= update => end,
            _ => last_use,
        } as u32;
    }
    ends
}
