//! Custom operations, which burn does not have: their memory and work, by the costs that they are recorded with.

use kiln_operations::{Call, Cost, Operand, cost};

use crate::trace::{Detail, StepTrace};

use super::memory::{Effect, Memory, Output};
use super::profile::{BackendProfile, Kernels};
use super::sizes::Sizes;

/// Where the outputs of an operation are, and its workspace, on burn's CPU device. Without a cost, all outputs are new.
pub(super) fn on_flex(memory: &Memory<'_>, index: usize) -> Effect {
    let (trace, inputs) = (memory.trace, memory.trace.graph.inputs_at(index));
    let Some(cost) = cost_at(trace, index) else { return Effect::new(Output::New, 0) };
    let call = call_at(trace, memory.sizes, index, |tensor| memory.strides(tensor));
    let reads = |position: usize| {
        let tensor = inputs[position].tensor;
        memory.is_exact(tensor) || (cost.any_order.contains(&position) && has_rows(memory.strides(tensor)))
    };
    let is_written = |position: usize| cost.in_place.iter().any(|(input, _)| *input == position);
    let copied = (0..inputs.len()).filter(|position| !is_written(*position) && !reads(*position));
    let copies: u64 = copied.map(|position| call.bytes(position)).sum();
    let mut outputs = places(memory, index, &call, cost).into_iter();
    let first = outputs.next().unwrap_or(Output::New);
    let workspace = copies + (cost.cpu_scratch)(&call, &memory.profile.cpu());
    Effect { others: outputs.collect(), ..Effect::new(first, workspace) }
}

/// Where the outputs of an operation are, and its workspace, on a CubeCL device: all outputs are new.
pub(super) fn on_cube(memory: &Memory<'_>, index: usize) -> Effect {
    let call = || call_at(memory.trace, memory.sizes, index, |_| &[]);
    Effect::new(
        Output::New,
        cost_at(memory.trace, index).map_or(0, |cost| (cost.gpu_scratch)(&call(), &memory.profile.gpu())),
    )
}

/// Multiply-adds of an operation, and the bytes that it moves in addition to reading each input and writing each output once.
pub(super) fn work(trace: &StepTrace, sizes: &Sizes, index: usize, profile: &BackendProfile) -> (f64, u64) {
    let Some(cost) = cost_at(trace, index) else { return (0.0, 0) };
    let call = call_at(trace, sizes, index, |_| &[]);
    let more_bytes = match profile.kernels {
        Kernels::Flex => 0, // what is read twice is in the cache
        Kernels::Cube => (cost.gpu_scratch)(&call, &profile.gpu()).saturating_mul(2),
    };
    ((cost.multiply_adds)(&call), more_bytes)
}

fn cost_at(trace: &StepTrace, index: usize) -> Option<&'static Cost> {
    cost::of(trace.graph.kind_at(index).short())
}

fn call_at<'a>(trace: &'a StepTrace, sizes: &'a Sizes, index: usize, strides: impl Fn(u32) -> &'a [isize]) -> Call<'a> {
    let operand = |tensor: u32, strides: &'a [isize]| Operand {
        shape: sizes.shape(tensor),
        dtype: trace.tensors[tensor as usize].dtype,
        bytes: sizes.bytes(tensor),
        strides,
    };
    let inputs = trace.graph.inputs_at(index).iter().map(|input| operand(input.tensor, strides(input.tensor)));
    let outputs = trace.graph.outputs_at(index).iter().map(|output| operand(*output, &[]));
    let scalars = match &trace.graph.kind_at(index).detail {
        Detail::Scalars(scalars) => scalars.as_slice(),
        _ => &[],
    };
    Call { inputs: inputs.collect(), outputs: outputs.collect(), scalars }
}

/// Whether the values of each row or of each column lie side by side.
fn has_rows(strides: &[isize]) -> bool {
    strides.iter().all(|stride| *stride >= 0) && strides.iter().rev().take(2).any(|stride| *stride == 1)
}

/// Where the outputs are. An input is overwritten if it has no other handle and if its buffer holds nothing else.
fn places(memory: &Memory<'_>, index: usize, call: &Call<'_>, cost: &Cost) -> Vec<Output> {
    let inputs = memory.trace.graph.inputs_at(index);
    let mut places = vec![Output::New; call.outputs.len()];
    for (input, output) in cost.same_layout {
        if let (Some(input), Some(place)) = (inputs.get(*input), places.get_mut(*output))
            && memory.fills_its_buffer(input.tensor)
        {
            *place = Output::Like(input.tensor);
        }
    }
    let mut written: Vec<(usize, usize)> = vec![];
    for (position, output) in cost.in_place {
        let (Some(input), Some(made)) = (call.inputs.get(*position), call.outputs.get(*output)) else { continue };
        let tensor = inputs[*position].tensor;
        let covers = match cost.any_order.contains(position) {
            true => memory.fills_its_buffer(tensor),
            false => memory.is_exact(tensor),
        };
        let taken = written.iter().any(|(input, place)| input == position || place == output);
        let alike = input.dtype == made.dtype && input.bytes == made.bytes;
        if !taken && alike && covers && memory.is_unique(index, tensor) {
            places[*output] = Output::Over(tensor);
            written.push((*position, *output));
        }
    }
    places
}
