//! Memory and work of the operations of kiln-layers. A trace knows these only by their ids.

mod cube;
mod flex;
mod operation;
mod rules;
mod work;

use crate::trace::StepTrace;

use super::memory::{Effect, Memory, Output};
use super::profile::{BackendProfile, Kernels};
use super::sizes::Sizes;
use operation::Operation;
use rules::{Rule, rule};

/// Where the outputs of an operation are, and its workspace, on burn's CPU device.
pub(super) fn on_flex(memory: &Memory<'_>, index: usize) -> Effect {
    let operation = Operation::new(memory.trace, memory.sizes, index);
    let Some(rule) = rule(operation.id) else { return Effect::new(Output::New, 0) };
    let reads = |position: usize| {
        let tensor = operation.inputs[position].tensor;
        memory.is_exact(tensor) || (rule.any_order.contains(&position) && has_rows(memory.strides(tensor)))
    };
    let is_written = |position: usize| rule.over.iter().any(|(input, _)| *input == position);
    let copied = (0..operation.inputs.len()).filter(|position| !is_written(*position) && !reads(*position));
    let copies: u64 = copied.map(|position| operation.bytes(position)).sum();
    let mut outputs = places(memory, index, &operation, rule).into_iter();
    let first = outputs.next().unwrap_or(Output::New);
    Effect { others: outputs.collect(), ..Effect::new(first, copies + (rule.flex)(&operation, memory)) }
}

/// Whether the values of each row or of each column lie side by side.
fn has_rows(strides: &[isize]) -> bool {
    strides.iter().all(|stride| *stride >= 0) && strides.iter().rev().take(2).any(|stride| *stride == 1)
}

/// Where the outputs are. An input is overwritten if it has no other handle and if its buffer holds nothing else.
fn places(memory: &Memory<'_>, index: usize, operation: &Operation<'_>, rule: &Rule) -> Vec<Output> {
    let mut places = vec![Output::New; operation.outputs.len()];
    for (input, output) in rule.like {
        if let (Some(input), Some(place)) = (operation.inputs.get(*input), places.get_mut(*output))
            && memory.fills_its_buffer(input.tensor)
        {
            *place = Output::Like(input.tensor);
        }
    }
    let mut written: Vec<(usize, usize)> = vec![];
    for (position, output) in rule.over {
        let Some(tensor) = operation.inputs.get(*position).map(|input| input.tensor) else { continue };
        let covers = match rule.any_order.contains(position) {
            true => memory.fills_its_buffer(tensor),
            false => memory.is_exact(tensor),
        };
        let taken = written.iter().any(|(input, place)| input == position || place == output);
        if !taken && operation.is_like(*output, tensor) && covers && memory.is_unique(index, tensor) {
            places[*output] = Output::Over(tensor);
            written.push((*position, *output));
        }
    }
    places
}

/// Where the outputs of an operation are, and its workspace, on a CubeCL device: all outputs are new.
pub(super) fn on_cube(memory: &Memory<'_>, index: usize) -> Effect {
    let operation = Operation::new(memory.trace, memory.sizes, index);
    Effect::new(Output::New, rule(operation.id).map_or(0, |rule| (rule.cube)(&operation)))
}

/// The computation of an operation, for estimates of its time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) multiply_adds: f64,
    /// Bytes that it moves in addition to reading each input and writing each output once.
    pub(super) more_bytes: u64,
}

impl Work {
    pub(super) fn of(trace: &StepTrace, sizes: &Sizes, index: usize, profile: &BackendProfile) -> Self {
        let operation = Operation::new(trace, sizes, index);
        let Some(rule) = rule(operation.id) else { return Self::default() };
        let more_bytes = match profile.kernels {
            Kernels::Flex => 0, // what is read twice is in the cache
            Kernels::Cube => (rule.cube)(&operation).saturating_mul(2),
        };
        Self { multiply_adds: (rule.multiply_adds)(&operation), more_bytes }
    }
}
