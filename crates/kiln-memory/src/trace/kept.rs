//! A trace with some of the operations of another one, and with new ones.

use super::graph::{Operation, Use};
use super::step_trace::StepTrace;

/// A trace that gets operations of another one.
pub(super) struct Kept {
    pub(super) trace: StepTrace,
    /// Where each operation of the other trace is, or would be.
    place: Vec<usize>,
    operations: Vec<Operation>,
}

impl Kept {
    pub(super) fn of(trace: &StepTrace) -> Self {
        let trace = trace.clone();
        Self { place: Vec::with_capacity(trace.graph.operations.len()), operations: vec![], trace }
    }

    /// Goes to the next operation of the other trace.
    pub(super) fn next(&mut self) {
        self.place.push(self.operations.len());
    }

    pub(super) fn push(&mut self, index: usize) {
        self.operations.push(self.trace.graph.operations[index]);
    }

    /// Adds an operation that makes `outputs`, or that is the last to read `inputs`.
    pub(super) fn add(&mut self, name: &str, inputs: &[u32], outputs: &[u32]) {
        if inputs.is_empty() && outputs.is_empty() {
            return;
        }
        let kind = self.trace.graph.kind_index(name);
        let inputs = inputs.iter().map(|tensor| Use { tensor: *tensor, last: true });
        let operation = self.trace.graph.operation(kind, inputs, outputs.iter().copied());
        self.operations.push(operation);
    }

    pub(super) fn finish(self) -> StepTrace {
        let Self { mut trace, place, operations } = self;
        let moved = |index: &mut usize| *index = place.get(*index).copied().unwrap_or(operations.len());
        trace.phases.iter_mut().for_each(moved);
        trace.cuts.iter_mut().for_each(moved);
        trace.releases.iter_mut().for_each(moved);
        trace.graph.operations = operations;
        trace
    }
}
