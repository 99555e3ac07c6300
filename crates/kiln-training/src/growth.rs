//! Memory that grows from step to step: how much, and which tensors of a step are as large.

use std::fmt;

use bytesize::ByteSize;
use kiln_memory::{Growth, Phase, Prediction};

/// The most bytes of a tensor's handle with its place in the graph.
const HANDLE: u64 = 1024;
/// A growth of fewer bytes is that of handles.
const FEW: u64 = 2 * HANDLE;
/// The most tensors that are named.
const NAMED: usize = 3;

/// Memory that grows by about the same in each step: something keeps a tensor of each, such as a list of losses that still have their graph.
/// Its text says how much, and what may be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryGrowth {
    /// Bytes that each step adds.
    pub bytes_per_step: u64,
    /// Steps over which it was seen.
    pub steps: u64,
    /// Tensors of a step with about as many bytes: operation, shape and module. Empty in a run whose step is not predicted.
    pub tensors: Vec<String>,
}

impl MemoryGrowth {
    /// `growth` of steps with this many micro-batches, each with the memory of `prediction`, if it is predicted.
    pub(crate) fn new(growth: Growth, micro_batches: usize, prediction: Option<&Prediction>) -> Self {
        let Growth { bytes_per_step, steps, .. } = growth;
        let tensors = prediction.map(|prediction| alike(prediction, bytes_per_step / micro_batches.max(1) as u64));
        Self { bytes_per_step, steps, tensors: tensors.unwrap_or_default() }
    }
}

/// The tensors of a micro-batch that take about as many bytes, and for few bytes the last small one of the forward pass: the loss.
fn alike(prediction: &Prediction, bytes: u64) -> Vec<String> {
    let forward = prediction.phases.iter().find(|phase| phase.phase == Phase::Forward);
    let in_forward = |born| forward.is_some_and(|phase| (phase.first..phase.end).contains(&born));
    let is_near = |size: u64| size <= bytes && size + size / 20 + HANDLE >= bytes;
    let mut alike: Vec<_> = match bytes < FEW {
        true => prediction.buffers.iter().filter(|buffer| buffer.shape == [1] && in_forward(buffer.born)).collect(),
        false => prediction.buffers.iter().filter(|buffer| is_near(buffer.bytes)).collect(),
    };
    alike.sort_by_key(|buffer| std::cmp::Reverse(buffer.born));
    let mut names: Vec<String> = vec![];
    for buffer in alike.into_iter().take(if bytes < FEW { 1 } else { usize::MAX }) {
        let place = buffer.path.as_ref().map(|path| format!(" in {path}")).unwrap_or_default();
        let name = format!("{} {:?}{place}", buffer.operation, buffer.shape);
        if !names.contains(&name) && names.len() < NAMED {
            names.push(name);
        }
    }
    names
}

impl fmt::Display for MemoryGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, steps) = (ByteSize(self.bytes_per_step), self.steps);
        write!(f, "memory has grown by {bytes} in each of the last {steps} steps: something keeps ")?;
        match &self.tensors[..] {
            [] if self.bytes_per_step < FEW => f.write_str("a tensor of few values of each, such as the loss"),
            [] => f.write_str("tensors of each"),
            [name] if self.bytes_per_step < FEW => {
                write!(f, "a tensor of few values of each, such as the loss ({name})")
            }
            names => write!(f, "a tensor of each, such as {}", names.join(" or ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryGrowth;

    #[test]
    fn the_text_says_what_may_be_kept() {
        let told = |bytes_per_step, tensors: &[&str]| {
            let tensors = tensors.iter().map(|name| (*name).to_owned()).collect();
            let text = MemoryGrowth { bytes_per_step, steps: 64, tensors }.to_string();
            text.split_once("steps: ").unwrap().1.to_owned()
        };
        assert_eq!(told(700, &[]), "something keeps a tensor of few values of each, such as the loss");
        let expected = "something keeps a tensor of few values of each, such as the loss (Div [1])";
        assert_eq!(told(700, &["Div [1]"]), expected);
        assert_eq!(told(70_000, &[]), "something keeps tensors of each");
        let expected = "something keeps a tensor of each, such as Matmul [8, 64] in h.0 or Add [8, 64]";
        assert_eq!(told(70_000, &["Matmul [8, 64] in h.0", "Add [8, 64]"]), expected);
    }
}
