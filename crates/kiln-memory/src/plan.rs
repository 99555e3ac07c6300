use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::program::{Detail, Op, Use};
use crate::trace::{StepTrace, TraceRole};

/// Consecutive blocks of a chain whose activations are not kept: they run again in the backward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recomputed {
    /// The blocks, counted from zero.
    pub blocks: Range<usize>,
    /// Whether the segment's input waits in host memory.
    pub offloaded: bool,
}

impl StepTrace {
    /// The same step with segments of its chain checkpointed: blocks are those between the [`cuts`](crate::Recorder::cut).
    ///
    /// A segment that is recomputed (Chen et al. 2016) keeps its input; its forward pass is repeated right before its
    /// backward pass. This is done on the recorded operations, since the capture device cannot record a pass within a pass.
    ///
    /// What is kept for the backward pass is less with each segment more, and so is the peak in a chain of blocks that are alike, up to
    /// the last one, which is best left plain. Elsewhere the peak can rise by some percent: a replay needs room of its own
    /// when gradients are there already, and under autocast it hands out its gradients in f32 at its end.
    ///
    /// # Errors
    /// [`Error::Plan`] for blocks that are not in the chain, or segments that overlap or are out of order, and for a model whose
    /// backward pass does not take the segments one after the other.
    pub fn with_plan(&self, segments: &[Recomputed]) -> Result<Self, Error> {
        let invalid = |segment: &Recomputed, reason| Error::Plan {
            from: segment.blocks.start,
            to: segment.blocks.end,
            blocks: self.blocks(),
            reason,
        };
        let mut after = 0;
        for segment in segments {
            let Range { start, end } = segment.blocks;
            if self.blocks() == 0 {
                return Err(invalid(segment, "the step was recorded without cuts between its blocks"));
            }
            if start >= end || end > self.blocks() {
                return Err(invalid(segment, "expected blocks of the chain"));
            }
            if start < after {
                return Err(invalid(segment, "expected segments one after the other"));
            }
            after = end;
        }
        let mut rewrite = Rewrite::of(self);
        // The backward pass begins with the last segment.
        let mut before = self.phases[1];
        for segment in segments.iter().rev() {
            let span = self.cuts[segment.blocks.start]..self.cuts[segment.blocks.end];
            match rewrite.recompute(span, segment.offloaded, before) {
                Some(place) => before = place,
                None => return Err(invalid(segment, "its backward pass is not in one piece")),
            }
        }
        Ok(rewrite.finish())
    }
}

/// A trace that is being changed.
struct Rewrite {
    trace: StepTrace,
    /// What is to be put in front of operations of the backward pass.
    replays: HashMap<usize, Vec<Op>>,
    /// Which tensors that came back from the host stand for which.
    uploads: HashMap<usize, usize>,
    /// Where the backward passes of the recomputed segments are, and the inputs that are held while they run.
    passes: Vec<(Range<usize>, Vec<usize>)>,
}

impl Rewrite {
    fn of(trace: &StepTrace) -> Self {
        Self { trace: trace.clone(), replays: HashMap::new(), uploads: HashMap::new(), passes: vec![] }
    }

    /// Checkpoints the operations of `span`; returns where in the backward pass they are repeated, which is at `from` or
    /// later.
    fn recompute(&mut self, span: Range<usize>, offloaded: bool, from: usize) -> Option<usize> {
        let [_, backward, update, _] = self.trace.phases;
        let operations = &self.trace.operations;
        let made: HashSet<usize> = operations[span.clone()].iter().flat_map(|op| op.outputs.clone()).collect();
        let leaves: HashSet<usize> = operations[span.end..backward]
            .iter()
            .flat_map(|op| op.inputs.iter().map(|input| input.tensor))
            .filter(|tensor| made.contains(tensor))
            .collect();
        let reads = |op: &Op, outputs: bool| {
            op.inputs.iter().any(|input| made.contains(&input.tensor) && (outputs || !leaves.contains(&input.tensor)))
        };
        // What needs only outputs may belong to the segment behind.
        let place = (backward..update).find(|index| reads(&operations[*index], false));
        let Some(place) = place else {
            // Nothing is kept, and nothing to repeat.
            return Some(from);
        };
        if place < from {
            return None;
        }
        let mut replay: Vec<Op> = operations[span.clone()].to_vec();
        let inputs = self.inputs(span.start, &replay, &made);
        let copies = self.copy(&replay);
        let mut uploads = HashMap::new();
        if offloaded {
            uploads =
                self.copy(&[Op { name: String::new(), inputs: vec![], outputs: inputs.clone(), detail: Detail::None }]);
            for op in replay.iter_mut().chain(&mut self.trace.operations[place..update]) {
                substitute(op, &uploads);
            }
            self.uploads.extend(uploads.iter().map(|(tensor, upload)| (*upload, *tensor)));
            let outputs = inputs.iter().filter_map(|tensor| uploads.get(tensor).copied()).collect();
            replay.insert(0, Op { name: "Upload".into(), inputs: vec![], outputs, detail: Detail::None });
        }
        for op in &mut replay {
            substitute(op, &copies);
            for output in &mut op.outputs {
                *output = copies.get(output).copied().unwrap_or(*output);
            }
        }
        for op in &mut self.trace.operations[place..update] {
            // From here on nothing belongs to the segment behind any more.
            for input in &mut op.inputs {
                let tensor = self.uploads.get(&input.tensor).filter(|tensor| made.contains(*tensor));
                input.tensor = tensor.copied().unwrap_or(input.tensor);
            }
            substitute(op, &copies);
        }
        let earlier: HashSet<usize> = self.trace.operations[self.trace.phases[0]..span.start]
            .iter()
            .flat_map(|op| op.outputs.clone())
            .filter(|tensor| !inputs.contains(tensor))
            .collect();
        let belongs = |op: &Op| op.inputs.iter().all(|input| !earlier.contains(&input.tensor));
        let after = (place..update).find(|index| !belongs(&self.trace.operations[*index])).unwrap_or(update);
        let held = self.held(span.start, &inputs, &uploads);
        for op in replay.iter_mut().chain(&mut self.trace.operations[place..after]) {
            for input in op.inputs.iter_mut().filter(|input| held.contains(&input.tensor)) {
                input.last = false;
            }
        }
        self.forget(span, &made, &leaves, &inputs, offloaded);
        self.replays.insert(place, replay);
        self.passes.push((place..after, held));
        Some(place)
    }

    /// The inputs of a segment that need a gradient: the pass within the pass holds them to its end, to give them theirs.
    fn held(&self, at: usize, inputs: &[usize], uploads: &HashMap<usize, usize>) -> Vec<usize> {
        let tensors = &self.trace.tensors;
        let mut learned: HashSet<usize> = HashSet::new();
        for op in &self.trace.operations[self.trace.phases[0]..at] {
            let learns =
                |input: &Use| tensors[input.tensor].role == TraceRole::Parameter || learned.contains(&input.tensor);
            if op.inputs.iter().any(learns) {
                learned.extend(&op.outputs);
            }
        }
        let held = inputs.iter().filter(|input| learned.contains(*input));
        held.map(|input| uploads.get(input).copied().unwrap_or(*input)).collect()
    }

    /// What the segment reads that was made before it in the forward pass.
    fn inputs(&self, at: usize, segment: &[Op], made: &HashSet<usize>) -> Vec<usize> {
        let start = self.trace.phases[0];
        let before: HashSet<usize> =
            self.trace.operations[start..at].iter().flat_map(|op| op.outputs.clone()).collect();
        let mut inputs = vec![];
        for input in segment.iter().flat_map(|op| &op.inputs) {
            let tensor = input.tensor;
            if before.contains(&tensor) && !made.contains(&tensor) && !inputs.contains(&tensor) {
                inputs.push(tensor);
            }
        }
        inputs
    }

    /// New tensors like those that operations make.
    fn copy(&mut self, operations: &[Op]) -> HashMap<usize, usize> {
        let mut copies = HashMap::new();
        for tensor in operations.iter().flat_map(|op| op.outputs.clone()) {
            let mut copy = self.trace.tensors[tensor].clone();
            if copy.role == TraceRole::Input {
                copy.role = TraceRole::Other;
            }
            self.trace.tensors.push(copy);
            copies.insert(tensor, self.trace.tensors.len() - 1);
        }
        copies
    }

    /// The first pass keeps nothing: what it makes is gone after its last use, but for what comes out.
    fn forget(
        &mut self,
        span: Range<usize>,
        made: &HashSet<usize>,
        leaves: &HashSet<usize>,
        inputs: &[usize],
        offloaded: bool,
    ) {
        let mut seen: HashSet<usize> = HashSet::new();
        for op in self.trace.operations[span].iter_mut().rev() {
            for Use { tensor, last } in op.inputs.iter_mut().rev() {
                if made.contains(tensor) {
                    *last = seen.insert(*tensor) && !leaves.contains(tensor);
                } else if inputs.contains(tensor) && !offloaded {
                    *last = false; // the segment holds it until it is repeated
                }
            }
        }
    }

    /// A pass within the pass ends with the gradients of its parameters; the plain one makes them at its end, which matters
    /// where they are cast.
    fn gradients_of_passes(&self) -> BTreeMap<usize, usize> {
        let [_, backward, update, _] = self.trace.phases;
        let operations = &self.trace.operations;
        let is_gradient = |tensor: &usize| self.trace.tensors[*tensor].role == TraceRole::Gradient;
        let mut made_at = HashMap::new();
        let mut moved = BTreeMap::new();
        for (index, op) in operations.iter().enumerate().take(update).skip(backward) {
            made_at.extend(op.outputs.iter().map(|output| (*output, index)));
            // What is made of gradients, as their sums are, comes after the backward pass.
            if !op.outputs.iter().any(is_gradient) || op.inputs.iter().any(|input| is_gradient(&input.tensor)) {
                continue;
            }
            // Back through the views that burn leaves for the end, to what computed it.
            let mut chain = vec![];
            let mut origin = index;
            while let [input] = &operations[origin].inputs[..]
                && matches!(operations[origin].kind(), "Cast" | "Reshape" | "SwapDims" | "Permute")
                && let Some(before) = made_at.get(&input.tensor)
            {
                chain.push(origin);
                origin = *before;
            }
            if let Some((pass, _)) = self.passes.iter().find(|(pass, _)| pass.contains(&origin)) {
                moved.extend(chain.into_iter().filter(|index| *index >= pass.end).map(|index| (index, pass.end)));
            }
        }
        moved
    }

    /// Puts the replays into the backward pass.
    fn finish(mut self) -> StepTrace {
        // Segments come last first, their passes in the order of the backward pass.
        for index in 1..self.passes.len() {
            let next = self.passes[index].0.start;
            self.passes[index - 1].0.end = self.passes[index - 1].0.end.min(next);
        }
        let moved = self.gradients_of_passes();
        let mut to: HashMap<usize, Vec<Op>> = HashMap::new();
        for (from, place) in &moved {
            to.entry(*place).or_default().push(self.trace.operations[*from].clone());
        }
        for (pass, held) in &self.passes {
            let inputs: Vec<Use> = held.iter().map(|tensor| Use { tensor: *tensor, last: true }).collect();
            let release = Op { name: "Release".into(), inputs, outputs: vec![], detail: Detail::None };
            to.entry(pass.end).or_default().push(release);
        }
        let mut operations = Vec::with_capacity(self.trace.operations.len());
        let mut added = 0;
        for (index, op) in self.trace.operations.drain(..).enumerate() {
            let ends = to.remove(&index).unwrap_or_default();
            added += ends.len();
            operations.extend(ends);
            let replay = self.replays.remove(&index).unwrap_or_default();
            added += replay.len();
            operations.extend(replay);
            match moved.contains_key(&index) {
                true => added -= 1,
                false => operations.push(op),
            }
        }
        self.trace.operations = operations;
        self.trace.phases[2] += added;
        self.trace.phases[3] += added;
        self.trace.releases.iter_mut().for_each(|place| *place += added);
        self.trace
    }
}

fn substitute(op: &mut Op, copies: &HashMap<usize, usize>) {
    for input in &mut op.inputs {
        if let Some(copy) = copies.get(&input.tensor) {
            input.tensor = *copy;
        }
    }
}
