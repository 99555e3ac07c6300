//! Rewrites the operations of a trace so that segments of the forward pass run again in the backward pass.

use std::collections::BTreeMap;
use std::ops::Range;

use super::graph::{Operation, Use};
use super::step_trace::{StepTrace, TraceRole};

/// Stands for "no operation" and "no tensor" in tables of indices.
const NONE: u32 = u32::MAX;

/// A trace that is being changed. Until [`finish`](Self::finish), operations keep their indices in the plain trace.
pub(super) struct Rewrite {
    trace: StepTrace,
    /// The operation of the step that makes each tensor.
    made_at: Vec<u32>,
    /// The last operation of the forward pass that reads each tensor.
    read_until: Vec<u32>,
    /// Whether each tensor of the forward pass depends on a parameter.
    learned: Vec<bool>,
    /// The tensor of the replay that replaces a tensor of the segment in progress.
    replaced_by: Vec<u32>,
    /// The tensor that an upload from the host brings back.
    upload_of: Vec<u32>,
    /// Operations to insert before an operation of the backward pass, last segment first.
    replays: Vec<(usize, Vec<Operation>)>,
    /// The ranges of the backward passes of the recomputed segments, and the inputs that are held while they run.
    passes: Vec<(Range<usize>, Vec<u32>)>,
}

/// A segment of the forward pass, and the tensors at its ends.
struct Segment {
    span: Range<usize>,
    /// Tensors that the segment reads and that were made before it in the forward pass.
    inputs: Vec<u32>,
    offloaded: bool,
}

impl Rewrite {
    pub(super) fn of(trace: &StepTrace) -> Self {
        let trace = trace.clone();
        let tensors = trace.tensors.len();
        let [start, backward, update, _] = trace.phases;
        let (mut made_at, mut read_until) = (vec![NONE; tensors], vec![NONE; tensors]);
        let mut learned: Vec<bool> = trace.tensors.iter().map(|tensor| tensor.role == TraceRole::Parameter).collect();
        for index in start..update {
            let inputs = trace.graph.inputs_at(index);
            if index < backward {
                inputs.iter().for_each(|input| read_until[input.tensor as usize] = index as u32);
            }
            let learns = index < backward && inputs.iter().any(|input| learned[input.tensor as usize]);
            for output in trace.graph.outputs_at(index) {
                made_at[*output as usize] = index as u32;
                learned[*output as usize] |= learns;
            }
        }
        Self {
            made_at,
            read_until,
            learned,
            replaced_by: vec![NONE; tensors],
            upload_of: vec![NONE; tensors],
            replays: vec![],
            passes: vec![],
            trace,
        }
    }

    /// The number of segments that are recomputed.
    pub(super) fn replays(&self) -> usize {
        self.replays.len()
    }

    /// Recomputes the operations of `span` in the backward pass. Returns the position at which they are repeated, which is `from` or
    /// later. `None` if the backward pass of the segment begins before `from`.
    pub(super) fn recompute(&mut self, span: Range<usize>, offloaded: bool, from: usize) -> Option<usize> {
        let [_, backward, update, _] = self.trace.phases;
        let segment = Segment { inputs: self.inputs(&span), span, offloaded };
        // Operations that read only the segment's outputs may belong to the next segment.
        let kept = |tensor| self.is_made_in(&segment.span, tensor) && !self.leaves(&segment.span, tensor);
        let kept = self.first_reader(backward..update, kept);
        // A segment may keep nothing but its inputs, and read them before what it has made.
        let own_input = |tensor| segment.inputs.contains(&tensor) && !self.leaves(&segment.span, tensor);
        let earlier = || (from..update).find(|index| self.reads_earlier(&segment, *index)).unwrap_or(update);
        let own_input = self.first_reader(from..kept.unwrap_or_else(earlier), own_input);
        let Some(place) = own_input.or(kept) else {
            return Some(from); // the backward pass needs nothing of the segment
        };
        if place < from {
            return None;
        }
        let mut replay = self.replay(&segment);
        let uploads = if offloaded { self.upload(&segment, &mut replay, place) } else { vec![] };
        self.redirect(&segment, place);
        let after = (place..update).find(|index| self.reads_earlier(&segment, *index)).unwrap_or(update);
        let held = self.held(&segment, &uploads);
        let keep = |input: &mut Use| input.last &= !held.contains(&input.tensor);
        if !held.is_empty() {
            let graph = &mut self.trace.graph;
            replay.iter().for_each(|operation| graph.inputs_mut(*operation).iter_mut().for_each(keep));
            for index in place..after {
                graph.inputs_mut(graph.operations[index]).iter_mut().for_each(keep);
            }
        }
        self.forget(&segment);
        self.replays.push((place, replay));
        self.passes.push((place..after, held));
        Some(place)
    }

    /// The first operation of a range that reads one of certain tensors.
    fn first_reader(&self, mut operations: Range<usize>, which: impl Fn(u32) -> bool) -> Option<usize> {
        operations.find(|index| self.trace.graph.inputs_at(*index).iter().any(|input| which(input.tensor)))
    }

    fn is_made_in(&self, span: &Range<usize>, tensor: u32) -> bool {
        span.contains(&(self.made_at[tensor as usize] as usize))
    }

    /// Whether the rest of the forward pass reads a tensor of a segment, or one of its inputs.
    fn leaves(&self, span: &Range<usize>, tensor: u32) -> bool {
        let until = self.read_until[tensor as usize];
        until != NONE && until as usize >= span.end
    }

    fn inputs(&self, span: &Range<usize>) -> Vec<u32> {
        let mut inputs = vec![];
        let before = self.trace.phases[0]..span.start;
        for index in span.clone() {
            for Use { tensor, .. } in self.trace.graph.inputs_at(index) {
                if self.is_made_in(&before, *tensor) && !inputs.contains(tensor) {
                    inputs.push(*tensor);
                }
            }
        }
        inputs
    }

    /// Copies the operations of a segment, with new tensors.
    fn replay(&mut self, segment: &Segment) -> Vec<Operation> {
        let mut replay = Vec::with_capacity(segment.span.len() + 1);
        for index in segment.span.clone() {
            let operation = self.trace.graph.operations[index];
            let outputs = self.trace.graph.outputs(operation).to_vec();
            let copies: Vec<u32> = outputs.iter().map(|output| self.copy(*output)).collect();
            for (output, copy) in outputs.iter().zip(&copies) {
                self.replaced_by[*output as usize] = *copy;
            }
            let mut inputs = self.trace.graph.inputs(operation).to_vec();
            substitute(&mut inputs, &self.replaced_by);
            replay.push(self.trace.graph.operation(operation.kind, inputs, copies));
        }
        replay
    }

    /// A new tensor with the shape and type of another one.
    fn copy(&mut self, tensor: u32) -> u32 {
        let mut copy = self.trace.tensors[tensor as usize];
        if copy.role == TraceRole::Input {
            copy.role = TraceRole::Other;
        }
        self.trace.tensors.push(copy);
        for table in [&mut self.made_at, &mut self.read_until, &mut self.replaced_by, &mut self.upload_of] {
            table.push(NONE);
        }
        self.learned.push(false);
        self.trace.tensors.len() as u32 - 1
    }

    /// Reads the inputs of a segment from uploads, both in its replay and in its backward pass. Returns the uploads.
    fn upload(&mut self, segment: &Segment, replay: &mut Vec<Operation>, place: usize) -> Vec<u32> {
        let uploads: Vec<u32> = segment.inputs.iter().map(|input| self.copy(*input)).collect();
        for (input, upload) in segment.inputs.iter().zip(&uploads) {
            self.upload_of[*upload as usize] = *input;
        }
        let read_upload = |input: &mut Use| {
            if let Some(position) = segment.inputs.iter().position(|tensor| *tensor == input.tensor) {
                input.tensor = uploads[position];
            }
        };
        let graph = &mut self.trace.graph;
        let backward = &graph.operations[place..self.trace.phases[2]];
        for operation in replay.iter().chain(backward).copied().collect::<Vec<_>>() {
            graph.inputs_mut(operation).iter_mut().for_each(read_upload);
        }
        let kind = graph.kind_index("Upload");
        replay.insert(0, graph.operation(kind, [], uploads.iter().copied()));
        uploads
    }

    /// Makes the backward pass from `place` on read the replay of a segment.
    fn redirect(&mut self, segment: &Segment, place: usize) {
        for index in place..self.trace.phases[2] {
            let operation = self.trace.graph.operations[index];
            for input in self.trace.graph.inputs_mut(operation) {
                // From here on no operation belongs to the next segment, which may have had uploads of its own.
                let original = self.upload_of[input.tensor as usize];
                if original != NONE && segment.span.contains(&(self.made_at[original as usize] as usize)) {
                    input.tensor = original;
                }
                let copy = self.replaced_by[input.tensor as usize];
                if copy != NONE {
                    input.tensor = copy;
                }
            }
        }
        for index in segment.span.clone() {
            for output in self.trace.graph.outputs_at(index) {
                self.replaced_by[*output as usize] = NONE;
            }
        }
    }

    /// Whether an operation of the backward pass reads tensors of earlier segments.
    fn reads_earlier(&self, segment: &Segment, index: usize) -> bool {
        let before = self.trace.phases[0]..segment.span.start;
        let inputs = self.trace.graph.inputs_at(index);
        inputs.iter().any(|input| self.is_made_in(&before, input.tensor) && !segment.inputs.contains(&input.tensor))
    }

    /// The inputs of a segment that need a gradient. The nested backward pass holds them to its end, to give them their gradients.
    fn held(&self, segment: &Segment, uploads: &[u32]) -> Vec<u32> {
        let inputs = segment.inputs.iter().enumerate().filter(|(_, input)| self.learned[**input as usize]);
        inputs.map(|(position, input)| uploads.get(position).copied().unwrap_or(*input)).collect()
    }

    /// Drops the tensors of the first forward pass after their last use, except those that leave the segment.
    fn forget(&mut self, segment: &Segment) {
        let mut seen = vec![];
        let mut is_seen = vec![false; self.made_at.len()];
        for index in segment.span.clone().rev() {
            let operation = self.trace.graph.operations[index];
            seen.clear();
            seen.extend_from_slice(self.trace.graph.inputs(operation));
            for Use { tensor, last } in seen.iter_mut().rev() {
                if self.is_made_in(&segment.span, *tensor) {
                    let first_seen = !std::mem::replace(&mut is_seen[*tensor as usize], true);
                    *last = first_seen && !self.leaves(&segment.span, *tensor);
                } else if !segment.offloaded && segment.inputs.contains(tensor) {
                    *last = false; // the segment holds it until it is repeated
                }
            }
            self.trace.graph.inputs_mut(operation).copy_from_slice(&seen);
        }
    }

    /// Operations to move, with their new positions. A nested backward pass ends with the gradients of its parameters. The plain backward
    /// pass makes them at its very end, which matters if they are cast. Gradients that are added to sums are added after the nested backward
    /// pass, and before that in the plain one.
    fn gradients_of_passes(&self) -> BTreeMap<usize, usize> {
        let [_, backward, update, _] = self.trace.phases;
        let graph = &self.trace.graph;
        let is_gradient = |tensor: u32| self.trace.tensors[tensor as usize].role == TraceRole::Gradient;
        let mut moved = BTreeMap::new();
        for index in backward..update {
            if !graph.outputs_at(index).iter().any(|output| is_gradient(*output)) {
                continue;
            }
            let (of_gradients, others): (Vec<&Use>, Vec<&Use>) =
                graph.inputs_at(index).iter().partition(|input| is_gradient(input.tensor));
            let (mut chain, mut origin, mut sum) = (vec![], index, None);
            match (&of_gradients[..], &others[..]) {
                ([], _) => {}
                // A sum that the backward pass goes on with, and a gradient that it has made.
                ([_], [made]) if self.made_at[made.tensor as usize] != NONE => {
                    sum = Some(index);
                    origin = self.made_at[made.tensor as usize] as usize;
                }
                // Sums that are computed after the backward pass.
                _ => continue,
            }
            // Skips the views that burn leaves for the end, back to the operation that computed the gradient.
            while let [input] = graph.inputs_at(origin)
                && matches!(graph.kind_at(origin).short(), "Cast" | "Reshape" | "SwapDims" | "Permute")
                && (backward..index).contains(&(self.made_at[input.tensor as usize] as usize))
            {
                chain.push(origin);
                origin = self.made_at[input.tensor as usize] as usize;
            }
            if let Some((pass, _)) = self.passes.iter().find(|(pass, _)| pass.contains(&origin)) {
                moved.extend(chain.into_iter().filter(|index| *index >= pass.end).map(|index| (index, pass.end)));
                moved.extend(sum.map(|index| (index, pass.end)));
            }
        }
        moved
    }

    /// Inserts the replays into the backward pass.
    pub(super) fn finish(mut self) -> StepTrace {
        // Segments are listed last first, and their backward passes run in this order.
        for index in 1..self.passes.len() {
            let next = self.passes[index].0.start;
            self.passes[index - 1].0.end = self.passes[index - 1].0.end.min(next);
        }
        let moved = self.gradients_of_passes();
        let mut inserted: BTreeMap<usize, Vec<Operation>> = BTreeMap::new();
        for (from, place) in &moved {
            inserted.entry(*place).or_default().push(self.trace.graph.operations[*from]);
        }
        let kind = self.trace.graph.kind_index("Release");
        for (pass, held) in &self.passes {
            let inputs = held.iter().map(|tensor| Use { tensor: *tensor, last: true });
            let release = self.trace.graph.operation(kind, inputs, []);
            inserted.entry(pass.end).or_default().push(release);
        }
        for (place, replay) in self.replays {
            inserted.entry(place).or_default().extend(replay);
        }
        let plain = std::mem::take(&mut self.trace.graph.operations);
        let more: usize = inserted.values().map(Vec::len).sum();
        let mut operations = Vec::with_capacity(plain.len() + more);
        let mut copied = 0;
        for (place, more) in inserted {
            copy_unmoved(&moved, &plain, copied..place, &mut operations);
            operations.extend(more);
            copied = place;
        }
        copy_unmoved(&moved, &plain, copied..plain.len(), &mut operations);
        let added = operations.len() - plain.len();
        self.trace.graph.operations = operations;
        self.trace.phases[2] += added;
        self.trace.phases[3] += added;
        self.trace.releases.iter_mut().for_each(|place| *place += added);
        self.trace
    }
}

/// Appends the operations of a range that have not been moved.
fn copy_unmoved(moved: &BTreeMap<usize, usize>, plain: &[Operation], range: Range<usize>, to: &mut Vec<Operation>) {
    let mut from = range.start;
    for (index, _) in moved.range(range.clone()) {
        to.extend_from_slice(&plain[from..*index]);
        from = index + 1;
    }
    to.extend_from_slice(&plain[from..range.end]);
}

fn substitute(inputs: &mut [Use], replaced_by: &[u32]) {
    for input in inputs {
        let copy = replaced_by[input.tensor as usize];
        if copy != NONE {
            input.tensor = copy;
        }
    }
}
