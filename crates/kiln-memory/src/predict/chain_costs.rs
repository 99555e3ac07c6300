//! Bytes and seconds of each block of a chain, as the input of a solver for checkpoint plans.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::trace::{NONE, Passes, StepTrace, TraceRole, backward_passes};

use super::estimate::live_bytes;
use super::layout::Layout;
use super::margin::overheads;
use super::profile::BackendProfile;
use super::sizes::Sizes;
use super::time::Clock;

/// Bytes and seconds of one block of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlockCost {
    /// Bytes of the tensors that the block reads from the block before it.
    pub input_bytes: u64,
    /// Bytes that the block keeps for its backward pass, its input and burn's graph included.
    pub saved_bytes: u64,
    /// Bytes in addition to `saved_bytes` that the block needs while it runs, in either direction.
    pub workspace_bytes: u64,
    /// Bytes of the gradients of its parameters.
    pub gradient_bytes: u64,
    /// Bytes of the trained parameters that only this block reads.
    pub parameter_bytes: u64,
    /// Bytes of the gradients of these parameters beside their sums while the block is recomputed, in a step that adds gradients to sums.
    pub unsummed_bytes: u64,
    /// Estimated seconds of its forward pass.
    pub forward_seconds: f64,
}

/// Bytes and seconds of the blocks of a chain, and bytes of the step around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChainCosts {
    /// The blocks, first to last.
    pub blocks: Vec<BlockCost>,
    /// Bytes that are alive during the whole forward and backward pass: parameters, optimizer state, sums of gradients, bytes
    /// of the device and the data loader, burn's graph beside the blocks, and tensors that were made before the chain and are kept.
    pub resident_bytes: u64,
    /// Bytes in addition to the resident and the saved bytes at the peak of the operations after the chain: the head and the loss.
    pub head_bytes: u64,
    /// The peak of the operations before the chain and after its backward pass, such as the update. No plan has a lower peak.
    pub floor_bytes: u64,
}

impl StepTrace {
    /// Bytes and seconds of each block between the [`cuts`](crate::Recorder::cut) in the plain step, for a solver of checkpoint
    /// plans.
    ///
    /// The peak of a plan follows from these numbers by this model. The forward pass leaves the bytes that each segment holds: its saved
    /// bytes if it is plain, its input if it is recomputed, nothing if it is offloaded. The head runs in addition to all of these. Then
    /// the segments follow, from the last to the first. Each needs its saved bytes (and its input if it is recomputed), the largest
    /// workspace of its blocks, the bytes that the segments before it hold, and the gradients so far, and if it is recomputed its
    /// unsummed gradients. The resident bytes are added to every sum. The peak is at least [`floor_bytes`](ChainCosts::floor_bytes).
    ///
    /// For the plain step the model is exact, except for buffers that outlive their block. For other plans it is an approximation and
    /// mostly too high, since a segment's largest workspace is not needed while all of its activations are alive. Verify a plan with
    /// [`with_plan`](Self::with_plan) and [`estimate`](Self::estimate).
    ///
    /// # Errors
    /// [`Error::BatchSize`] as for [`estimate`](Self::estimate), and [`Error::Plan`] for a step without cuts and for a model
    /// whose backward pass does not run the blocks one after the other.
    pub fn chain_costs(&self, batch: usize, profile: &BackendProfile) -> Result<ChainCosts, Error> {
        let refused = |blocks: Range<usize>, reason| Error::Plan {
            from: blocks.start,
            to: blocks.end,
            blocks: self.blocks(),
            reason,
        };
        if self.blocks() == 0 {
            return Err(refused(0..0, "the step was recorded without cuts between its blocks"));
        }
        let passes = backward_passes(self)
            .map_err(|block| refused(block..block + 1, "its backward pass is not in one piece"))?;
        let sizes = Sizes::of(self, batch, profile)?;
        let layout = Layout::of(self, &sizes, profile);
        let live = live_bytes(self, &layout, profile);
        let clock = Clock::new(self, &sizes, profile);
        let mut costs = self.held_bytes(&layout, &passes, profile);
        self.peaks(&mut costs, &live, &passes);
        for (cost, span) in costs.blocks.iter_mut().zip(self.cuts.windows(2)) {
            cost.forward_seconds = (span[0]..span[1]).map(|index| clock.seconds(index)).sum();
            // burn's graph of a block is kept with its activations.
            let of_graph = profile.operation_bytes * (span[1] - span[0]) as u64;
            cost.saved_bytes += of_graph;
            costs.resident_bytes -= of_graph;
        }
        Ok(costs)
    }

    /// Bytes that are held longer than one operation: inputs, saved tensors, gradients, resident tensors.
    fn held_bytes(&self, layout: &Layout, passes: &Passes, profile: &BackendProfile) -> ChainCosts {
        let [start, backward, ..] = self.phases;
        let (first_cut, last_cut) = (self.cuts[0], self.cuts[self.blocks()]);
        let mut costs = ChainCosts { blocks: vec![BlockCost::default(); self.blocks()], ..ChainCosts::default() };
        let mut buffer_of = vec![0; self.tensors.len()];
        for (index, buffer) in layout.blocks.iter().enumerate() {
            layout.tensors_of(buffer).for_each(|tensor| buffer_of[tensor as usize] = index);
        }
        // Counted by tensor, since a block may write its output over the buffer of its input.
        let mut made_at = vec![NONE; self.tensors.len()];
        for index in start..backward {
            self.graph.outputs_at(index).iter().for_each(|output| made_at[*output as usize] = index);
        }
        // The block that has a buffer as its input is the first block that reads it.
        let mut input_of = vec![NONE; layout.blocks.len()];
        for (block, span) in self.cuts.windows(2).enumerate() {
            // A tensor that was made before the chain and is read by later blocks is resident.
            let oldest = if block == 0 { start } else { first_cut };
            let mut seen = vec![];
            for input in (span[0]..span[1]).flat_map(|index| self.graph.inputs_at(index)) {
                let buffer = buffer_of[input.tensor as usize];
                if (oldest..span[0]).contains(&made_at[input.tensor as usize]) && !seen.contains(&buffer) {
                    seen.push(buffer);
                    costs.blocks[block].input_bytes += profile.taken(layout.blocks[buffer].bytes);
                    if input_of[buffer] == NONE {
                        input_of[buffer] = block;
                    }
                }
            }
        }
        let mut read_by_head = vec![false; layout.blocks.len()];
        for input in (last_cut..backward).flat_map(|index| self.graph.inputs_at(index)) {
            read_by_head[buffer_of[input.tensor as usize]] = true;
        }
        for (index, buffer) in layout.blocks.iter().enumerate() {
            let (born, dies) = (buffer.born as usize, buffer.dies as usize);
            let bytes = profile.taken(buffer.bytes);
            if born < backward && dies >= backward {
                match input_of[index] {
                    NONE if born < first_cut => costs.resident_bytes += bytes,
                    NONE if born < last_cut && !read_by_head[index] => {
                        let block = self.cuts.partition_point(|cut| *cut <= born) - 1;
                        costs.blocks[block].saved_bytes += bytes;
                    }
                    NONE => {} // of the head
                    block => costs.blocks[block].saved_bytes += bytes,
                }
            }
        }
        for (block, cost) in costs.blocks.iter_mut().enumerate() {
            let own = self.trained_only_by(std::slice::from_ref(&(block..block + 1)));
            let bytes_of = |role: TraceRole| -> u64 {
                let before = layout.blocks.iter().filter(|buffer| (buffer.born as usize) < start);
                let of_role = before.filter(|buffer| {
                    let mut tensors = layout.tensors_of(buffer).map(|tensor| tensor as usize);
                    tensors.any(|tensor| {
                        self.tensors[tensor].role == role && self.path_of(tensor).is_some_and(|path| own.contains(path))
                    })
                });
                of_role.map(|buffer| profile.taken(buffer.bytes)).sum()
            };
            cost.parameter_bytes = bytes_of(TraceRole::Parameter);
            cost.unsummed_bytes = bytes_of(TraceRole::Gradient);
        }
        for (tensor, block) in &passes.gradients {
            costs.blocks[*block].gradient_bytes += profile.taken(layout.blocks[buffer_of[*tensor as usize]].bytes);
        }
        // Others are made beside their sums in a plain block too.
        for cost in &mut costs.blocks {
            cost.unsummed_bytes = cost.unsummed_bytes.saturating_sub(cost.gradient_bytes);
        }
        costs.resident_bytes += overheads(self, layout.batch, profile).map(|overhead| overhead.bytes).sum::<u64>();
        costs
    }

    /// Workspace, head and floor: the peaks of parts of the step, less the bytes held meanwhile.
    fn peaks(&self, costs: &mut ChainCosts, live: &[u64], passes: &Passes) {
        let [start, backward, _, end] = self.phases;
        let last_cut = self.cuts[self.blocks()];
        let peak = |operations: Range<usize>| {
            live[operations.start - start..operations.end - start].iter().copied().max().unwrap_or(0)
        };
        let mut held = costs.resident_bytes;
        for (block, span) in self.cuts.windows(2).enumerate() {
            held += costs.blocks[block].saved_bytes;
            costs.blocks[block].workspace_bytes = peak(span[0]..span[1]).saturating_sub(held);
        }
        let head_end = passes.begins.last().copied().unwrap_or(backward);
        costs.head_bytes = peak(last_cut..head_end).saturating_sub(held);
        let mut gradients = 0;
        for block in (0..self.blocks()).rev() {
            gradients += costs.blocks[block].gradient_bytes;
            let pass = passes.begins[block]..if block == 0 { passes.end } else { passes.begins[block - 1] };
            let workspace = peak(pass).saturating_sub(held + gradients);
            let cost = &mut costs.blocks[block];
            cost.workspace_bytes = cost.workspace_bytes.max(workspace);
            held -= cost.saved_bytes;
        }
        costs.floor_bytes = peak(start..self.cuts[0]).max(peak(passes.end..end));
    }
}
