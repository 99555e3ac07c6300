//! The steps of the stages that a model's chain of blocks is divided into, as traces of their own.

use std::collections::BTreeMap;

use burn::tensor::DType;

use super::graph::{Operation, Use};
use super::passes::{NONE, backward_passes};
use super::step_trace::{StepTrace, TraceRole, TraceTensor};
use crate::error::Error;

impl StepTrace {
    /// Divides the step into the parts that the stages of a pipeline run, for one micro-batch. `cuts` are the first blocks of all stages
    /// except the first one.
    ///
    /// Operations before the chain belong to the first stage, and operations after it to the last one. A parameter belongs to the first
    /// stage that reads it, with its sum of gradients, its optimizer state and its update. Another stage that reads it has a copy, and
    /// sends its gradient to the owner. Tensors that a stage reads from another one arrive at the beginning of its pass, in memory of its
    /// own. The inputs of a stage and their gradients are held to the end of its backward pass.
    ///
    /// Without cuts the only part is the step itself. The parts are ordinary steps: they can be estimated and planned
    /// ([`with_plan`](Self::with_plan)). Their blocks count from zero.
    ///
    /// # Errors
    /// [`Error::Plan`] for cuts that are not rising between the chain's blocks, and for a model whose backward pass does not run the
    /// blocks one after the other.
    pub fn stages(&self, cuts: &[usize]) -> Result<Vec<Self>, Error> {
        let blocks = self.blocks();
        let refused = |from, to, reason| Error::Plan { from, to, blocks, reason };
        if cuts.is_empty() {
            return Ok(vec![self.clone()]);
        }
        if blocks == 0 {
            return Err(refused(0, 0, "the step was recorded without cuts between its blocks"));
        }
        let bounds: Vec<usize> = [0].iter().chain(cuts).chain([&blocks]).copied().collect();
        if let Some(pair) = bounds.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(refused(pair[0], pair[1], "expected the first blocks of stages, rising, within the chain"));
        }
        let divided = Divided::of(self, &bounds)
            .map_err(|block| refused(block, block + 1, "its backward pass is not in one piece"))?;
        Ok((0..bounds.len() - 1).map(|stage| divided.part(stage)).collect())
    }

    /// The number of the model's tensors: parameters and running statistics.
    pub fn model_tensors(&self) -> u64 {
        self.with_role(TraceRole::Parameter)
    }

    /// The paths and numbers of elements of the parameters that are updated, in the order of the fields.
    pub fn learned_parameters(&self) -> Vec<(&str, u64)> {
        self.learned_shapes().map(|(path, shape, _)| (path, elements(&shape))).collect()
    }

    /// The paths of these parameters and the bytes of their values, which may have 16 bits.
    pub fn learned_bytes(&self) -> Vec<(&str, u64)> {
        self.learned_shapes().map(|(path, shape, dtype)| (path, elements(&shape) * dtype.size() as u64)).collect()
    }

    /// The paths, shapes and dtypes of the parameters that are updated.
    pub(crate) fn learned_shapes(&self) -> impl Iterator<Item = (&str, Vec<usize>, DType)> {
        let [.., update, end] = self.phases;
        let outputs = (update..end).flat_map(|index| self.graph.outputs_at(index));
        let updated = outputs.map(|output| self.tensors[*output as usize]);
        let updated = updated.filter(|tensor| tensor.role == TraceRole::Updated);
        let updated: BTreeMap<u32, TraceTensor> = updated.filter_map(|tensor| Some((tensor.path?, tensor))).collect();
        self.learned.iter().filter_map(move |path| {
            let tensor = updated.get(path)?;
            let shape = &self.shapes[tensor.shape as usize];
            let sizes = shape.iter().map(|size| size[0]).collect();
            Some((self.paths[*path as usize].as_str(), sizes, tensor.dtype))
        })
    }

    /// The step of a replica that keeps the optimizer state of only some parameters, and updates only these. `owns` gets the path of a
    /// parameter.
    #[must_use]
    pub fn updating(&self, owns: impl Fn(&str) -> bool) -> Self {
        let [.., update, end] = self.phases;
        let owned: Vec<bool> = self.paths.iter().map(|path| owns(path)).collect();
        let owner = self.owners_in_update(|path| usize::from(owned[path as usize]));
        // The norm reads the gradients of all parameters and comes before the first new value.
        let is_result = |index: usize| {
            let mut outputs = self.graph.outputs_at(index).iter();
            outputs.any(|output| self.tensors[*output as usize].role == TraceRole::Updated)
        };
        let states = self.read_before(update);
        let touches_state = |index: usize| {
            self.graph.inputs_at(index).iter().any(|input| states[input.tensor as usize]) || is_result(index)
        };
        let first = (update..end).find(|index| touches_state(*index)).unwrap_or(end);
        self.keeping(|index| index < first || index >= end || self.is_mark(index) || owner[index - update] == 1)
    }

    /// Whether each tensor is optimizer state: it was made before the step and is not a parameter, gradient or input.
    fn read_before(&self, update: usize) -> Vec<bool> {
        let mut known = vec![false; self.tensors.len()];
        let start = self.phases[0];
        for output in (0..start).flat_map(|index| self.graph.outputs_at(index)) {
            known[*output as usize] = self.tensors[*output as usize].role == TraceRole::Other;
        }
        for input in (start..update).flat_map(|index| self.graph.inputs_at(index)) {
            known[input.tensor as usize] = false;
        }
        known
    }

    /// Whether an operation marks a position of the recording.
    fn is_mark(&self, index: usize) -> bool {
        self.phases.contains(&index) || self.releases.contains(&index)
    }

    /// The owner of each operation of the update, which is the owner of the parameter that it updates. `owner_of` returns the owner of a
    /// path.
    fn owners_in_update(&self, owner_of: impl Fn(u32) -> usize) -> Vec<usize> {
        let [.., update, end] = self.phases;
        let owner_of = |tensor: u32| {
            let tensor = &self.tensors[tensor as usize];
            let named = matches!(tensor.role, TraceRole::Parameter | TraceRole::Gradient | TraceRole::Updated);
            tensor.path.filter(|_| named).map(&owner_of)
        };
        let mut owners = vec![NONE; end - update];
        let mut home = vec![NONE; self.tensors.len()];
        // First forward along the tensors, then backward for operations on optimizer state that come before the parameter is read.
        for index in update..end {
            let inputs = self.graph.inputs_at(index).iter().map(|input| input.tensor);
            let tensors = inputs.chain(self.graph.outputs_at(index).iter().copied());
            let owner = tensors.map(|tensor| owner_of(tensor).unwrap_or(home[tensor as usize]));
            owners[index - update] = owner.min().unwrap_or(NONE);
            for output in self.graph.outputs_at(index) {
                home[*output as usize] = owners[index - update];
            }
        }
        for index in (update..end).rev() {
            let outputs = self.graph.outputs_at(index).iter().map(|output| home[*output as usize]);
            if owners[index - update] == NONE {
                owners[index - update] = outputs.min().unwrap_or(NONE);
            }
            for input in self.graph.inputs_at(index) {
                let home = &mut home[input.tensor as usize];
                *home = (*home).min(owners[index - update]);
            }
        }
        owners
    }

    /// A copy of the step with only the operations that `keep` selects. Tensors that were made before the step and that only the other
    /// operations read are dropped before the step.
    fn keeping(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut kept = Kept::of(self);
        for index in 0..self.graph.operations.len() {
            kept.next();
            if keep(index) {
                kept.push(index);
            }
        }
        kept.finish()
    }
}

/// A trace to which operations of another one are added.
struct Kept {
    trace: StepTrace,
    /// The position of each operation of the other trace, whether or not it is added.
    place: Vec<usize>,
    operations: Vec<Operation>,
}

impl Kept {
    fn of(trace: &StepTrace) -> Self {
        let trace = trace.clone();
        Self { place: Vec::with_capacity(trace.graph.operations.len()), operations: vec![], trace }
    }

    /// Goes to the next operation of the other trace.
    fn next(&mut self) {
        self.place.push(self.operations.len());
    }

    fn push(&mut self, index: usize) {
        self.operations.push(self.trace.graph.operations[index]);
    }

    /// Adds an operation that makes `outputs`, or that is the last to read `inputs`.
    fn add(&mut self, name: &str, inputs: &[u32], outputs: &[u32]) {
        if inputs.is_empty() && outputs.is_empty() {
            return;
        }
        let kind = self.trace.graph.kind_index(name);
        let inputs = inputs.iter().map(|tensor| Use { tensor: *tensor, last: true });
        let operation = self.trace.graph.operation(kind, inputs, outputs.iter().copied());
        self.operations.push(operation);
    }

    fn finish(self) -> StepTrace {
        let Self { mut trace, place, operations } = self;
        let moved = |index: &mut usize| *index = place.get(*index).copied().unwrap_or(operations.len());
        trace.phases.iter_mut().for_each(moved);
        trace.cuts.iter_mut().for_each(moved);
        trace.releases.iter_mut().for_each(moved);
        trace.graph.operations = operations;
        trace
    }
}

/// A step whose operations are assigned to stages.
struct Divided<'a> {
    trace: &'a StepTrace,
    /// The first block of each stage, and the number of blocks.
    bounds: &'a [usize],
    /// The first operation after the backward pass of the chain.
    tail: usize,
    /// The stage of each operation of the step, counted from the first one.
    of: Vec<usize>,
    /// The stage that owns each parameter, by path.
    owner: Vec<usize>,
    /// The operation of the step that makes each tensor.
    made_at: Vec<usize>,
}

impl<'a> Divided<'a> {
    /// # Errors
    /// The block whose backward pass begins before that of the next block.
    fn of(trace: &'a StepTrace, bounds: &'a [usize]) -> Result<Self, usize> {
        let passes = backward_passes(trace)?;
        let [start, backward, _, end] = trace.phases;
        let cuts = &bounds[1..bounds.len() - 1];
        let mut of = Vec::with_capacity(end - start);
        of.extend((start..backward).map(|index| cuts.iter().filter(|cut| trace.cuts[**cut] <= index).count()));
        let in_backward = |index: usize| cuts.iter().filter(|cut| index < passes.begins[**cut - 1]).count();
        of.extend((backward..passes.end).map(in_backward));
        let mut owner = vec![NONE; trace.paths.len()];
        for (index, stage) in (start..).zip(&of) {
            for input in trace.graph.inputs_at(index) {
                let tensor = &trace.tensors[input.tensor as usize];
                if let (TraceRole::Parameter, Some(path)) = (tensor.role, tensor.path) {
                    owner[path as usize] = owner[path as usize].min(*stage);
                }
            }
        }
        owner.iter_mut().filter(|owner| **owner == NONE).for_each(|owner| *owner = 0);
        let mut made_at = vec![NONE; trace.tensors.len()];
        for index in start..end {
            trace.graph.outputs_at(index).iter().for_each(|output| made_at[*output as usize] = index);
        }
        let mut divided = Self { trace, bounds, tail: passes.end, of, owner, made_at };
        divided.of.extend(divided.in_tail());
        divided.of.extend(trace.owners_in_update(|path| divided.owner[path as usize]));
        Ok(divided)
    }

    /// The stages of the operations between the chain's backward pass and the update: the rest of the first stage's backward pass, casts
    /// of gradients that burn leaves for the end, and sums of gradients.
    fn in_tail(&self) -> Vec<usize> {
        let (trace, update) = (self.trace, self.trace.phases[2]);
        let mut stages = vec![0; update - self.tail];
        let mut wanted = vec![NONE; trace.tensors.len()];
        for index in (self.tail..update).rev() {
            let outputs = trace.graph.outputs_at(index);
            let gradient = outputs.iter().map(|output| &trace.tensors[*output as usize]);
            let gradient = gradient.filter(|tensor| tensor.role == TraceRole::Gradient).find_map(|tensor| tensor.path);
            let wanted_by = outputs.iter().map(|output| wanted[*output as usize]).find(|stage| *stage != NONE);
            let stage = gradient.map(|path| self.owner[path as usize]).or(wanted_by).unwrap_or(0);
            stages[index - self.tail] = stage;
            trace.graph.inputs_at(index).iter().for_each(|input| wanted[input.tensor as usize] = stage);
        }
        stages
    }

    fn stage_at(&self, index: usize) -> usize {
        self.of[index - self.trace.phases[0]]
    }

    /// The tensors that reach a stage from others in the forward pass and in the backward pass, and those that it sends back in the
    /// backward pass.
    fn exchanged(&self, stage: usize) -> [Vec<u32>; 3] {
        let [start, backward, update, _] = self.trace.phases;
        let [mut forward, mut returned, mut sent]: [Vec<u32>; 3] = Default::default();
        for index in start..update {
            for Use { tensor, .. } in self.trace.graph.inputs_at(index) {
                let made_at = self.made_at[*tensor as usize];
                if made_at == NONE || self.stage_at(made_at) == self.stage_at(index) {
                    continue;
                }
                let list = match (self.stage_at(index) == stage, self.stage_at(made_at) == stage) {
                    (true, _) if made_at < backward && self.stage_at(made_at) < stage => &mut forward,
                    (true, _) => &mut returned,
                    (_, true) if (backward..self.tail).contains(&made_at) => &mut sent,
                    _ => continue,
                };
                if !list.contains(tensor) {
                    list.push(*tensor);
                }
            }
        }
        [forward, returned, sent]
    }

    /// The step of one stage.
    fn part(&self, stage: usize) -> StepTrace {
        let [start, backward, _, end] = self.trace.phases;
        let [forward, returned, sent] = self.exchanged(stage);
        let held: Vec<u32> = forward.iter().chain(&sent).copied().collect();
        let mut kept = Kept::of(self.trace);
        let mut reads = vec![false; self.trace.tensors.len()];
        for index in 0..self.trace.graph.operations.len() {
            if index == self.tail {
                kept.add("Release", &held, &[]);
            }
            kept.next();
            let own = (start..end).contains(&index) && self.stage_at(index) == stage;
            if index < start || index >= end || own || self.trace.is_mark(index) {
                kept.push(index);
            }
            if own {
                let operation = kept.trace.graph.operations[index];
                for input in kept.trace.graph.inputs_mut(operation) {
                    input.last &= !held.contains(&input.tensor);
                    reads[input.tensor as usize] = true;
                }
            }
            if index == start {
                kept.add("Receive", &[], &forward);
            } else if index == backward {
                kept.add("Receive", &[], &returned);
            }
        }
        let mut trace = kept.finish();
        trace.cuts = trace.cuts[self.bounds[stage]..=self.bounds[stage + 1]].to_vec();
        for (tensor, info) in trace.tensors.iter_mut().enumerate() {
            let owned = info.path.is_some_and(|path| self.owner[path as usize] == stage);
            if info.role == TraceRole::Parameter && !owned && !reads[tensor] {
                info.role = TraceRole::Other; // dropped before the step
            }
        }
        trace
    }
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|size| *size as u64).product()
}
