//! The positions of a chain's blocks in the backward pass of a step.

use super::step_trace::{StepTrace, TraceRole};

/// Stands for "no operation" and "no block" in tables of indices.
pub(crate) const NONE: usize = usize::MAX;

/// The positions of the blocks in the backward pass.
pub(crate) struct Passes {
    /// The first operation of each block's backward pass. For a block of which the backward pass needs nothing, it is that of the next block.
    pub(crate) begins: Vec<usize>,
    /// The first operation after the backward pass of the first block.
    pub(crate) end: usize,
    /// The gradients of parameters as the plain step holds them (in 16 bits under autocast), with the blocks whose backward passes
    /// compute them.
    pub(crate) gradients: Vec<(u32, usize)>,
}

/// # Errors
/// The block whose backward pass begins before that of the next block.
pub(crate) fn backward_passes(trace: &StepTrace) -> Result<Passes, usize> {
    let [start, backward, update, _] = trace.phases;
    let (first_cut, blocks) = (trace.cuts[0], trace.blocks());
    let mut made_at = vec![NONE; trace.tensors.len()];
    let mut read_until = vec![0; trace.tensors.len()];
    for index in start..backward {
        for input in trace.graph.inputs_at(index) {
            read_until[input.tensor as usize] = index;
        }
        for output in trace.graph.outputs_at(index) {
            made_at[*output as usize] = index;
        }
    }
    let block_of = |index: usize| match trace.cuts.partition_point(|cut| *cut <= index) {
        0 => None,
        cuts => (cuts <= blocks).then(|| cuts - 1),
    };
    let mut begins = vec![NONE; blocks];
    // Operations that read inputs of a block which no later block reads: one may keep nothing else.
    let mut readers = vec![vec![]; blocks];
    for index in backward..update {
        for input in trace.graph.inputs_at(index) {
            let (made_at, until) = (made_at[input.tensor as usize], read_until[input.tensor as usize]);
            if made_at == NONE {
                continue;
            }
            // Operations that read only the block's output may belong to the next block.
            match (block_of(made_at), block_of(until)) {
                (Some(block), Some(last)) if block == last => begins[block] = begins[block].min(index),
                (Some(block), _) if until < made_at => begins[block] = begins[block].min(index),
                (_, Some(last)) => readers[last].push(index),
                _ => {}
            }
        }
    }
    let mut behind = backward;
    for block in (0..blocks).rev() {
        if begins[block] < behind {
            return Err(block);
        }
        let earlier = begins[..=block].iter().copied().rev().find(|place| *place != NONE).unwrap_or(update);
        let own_input = readers[block].iter().copied().find(|index| (behind..earlier).contains(index));
        begins[block] = own_input.unwrap_or(if begins[block] == NONE { behind } else { begins[block] });
        behind = begins[block];
    }
    let is_gradient = |tensor: u32| trace.tensors[tensor as usize].role == TraceRole::Gradient;
    let mut end = update;
    let mut computed_at = vec![];
    for index in begins[0]..update {
        let reads_end = trace.graph.inputs_at(index).iter().any(|input| {
            let made_at = made_at[input.tensor as usize];
            is_gradient(input.tensor) || (made_at < first_cut && read_until[input.tensor as usize] < first_cut)
        });
        if reads_end {
            end = end.min(index);
        }
    }
    for index in backward..update {
        for output in trace.graph.outputs_at(index) {
            made_at[*output as usize] = index;
        }
        let inputs = trace.graph.inputs_at(index);
        let gradient = trace.graph.outputs_at(index).iter().find(|output| is_gradient(**output));
        if let (Some(gradient), false) = (gradient, inputs.iter().any(|input| is_gradient(input.tensor))) {
            let (computed, origin) = origin(trace, &made_at, *gradient, index);
            computed_at.push((computed, origin));
            if origin < begins[0] && index > begins[0] {
                end = end.min(index); // casts of gradients, which burn leaves for the end
            }
        }
    }
    // The last block runs first.
    let block_at = |operation: usize| begins.iter().position(|begins| *begins <= operation);
    let gradients = computed_at.into_iter().filter(|(_, origin)| *origin < end);
    let gradients = gradients.filter_map(|(gradient, origin)| Some((gradient, block_at(origin)?))).collect();
    Ok(Passes { begins, end, gradients })
}

/// The operation that computes a gradient, and the tensor that it makes. Views and casts that burn leaves for the end of the backward
/// pass are skipped. The operation may compute other gradients as well, as a batch norm's does.
fn origin(trace: &StepTrace, made_at: &[usize], mut gradient: u32, mut index: usize) -> (u32, usize) {
    while let [input] = trace.graph.inputs_at(index)
        && matches!(trace.graph.kind_at(index).short(), "Cast" | "Reshape" | "SwapDims" | "Permute")
        && (trace.phases[1]..index).contains(&made_at[input.tensor as usize])
    {
        (gradient, index) = (input.tensor, made_at[input.tensor as usize]);
    }
    (gradient, index)
}
