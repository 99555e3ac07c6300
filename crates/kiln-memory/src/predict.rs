use std::cmp::Reverse;

use crate::layout::{Block, Machine};
use crate::prediction::{Buffer, Operation, PhasePeak, Prediction};
use crate::profile::BackendProfile;
use crate::program::Program;
use crate::trace::{StepTrace, TraceRole};
use crate::{Breakdown, Category, Error, Phase, time};

impl StepTrace {
    /// What the step takes at a batch size on a device.
    ///
    /// Counted is all that the recorded operations allocate there, by the device's rules for views and reuse, and what
    /// its kernels allocate for themselves. Not counted: the data loader, the host's copy of the batch, the
    /// program itself, and what an allocator loses to fragmentation.
    ///
    /// # Errors
    /// [`Error::BatchSize`] for 0, and for a size whose bytes cannot be counted.
    pub fn predict(&self, batch: usize, profile: &BackendProfile) -> Result<Prediction, Error> {
        let program = self.at(batch)?;
        let ends = self.ends(&program);
        let (blocks, workspaces) = Machine::run(&program, &ends, profile);
        let [start, .., end] = self.phases;
        let mut buffers: Vec<Buffer> = vec![];
        for block in blocks.iter().filter(|block| block.dies >= start && block.born < end) {
            buffers.push(self.buffer(&program, block, profile));
        }
        for (index, bytes) in
            workspaces.iter().enumerate().skip(start).take(end - start).filter(|(_, bytes)| **bytes > 0)
        {
            let op = &program.operations[index];
            let path = op.outputs.first().and_then(|output| self.tensors[*output].path.clone());
            buffers.push(buffer(*bytes, Category::Workspace, op.kind(), index - start, index - start, path));
        }
        let forward = self.phases[1] - start;
        let graph = profile.operation_bytes * forward as u64;
        for (bytes, name, last) in
            [(profile.fixed_bytes, "(the device)", end - start - 1), (graph, "(the graph)", self.phases[2] - start - 1)]
        {
            if bytes > 0 {
                buffers.push(buffer(bytes, Category::Workspace, name, 0, last, None));
            }
        }
        buffers.sort_by_key(|buffer| (buffer.born, Reverse(buffer.bytes)));
        Ok(self.assemble(&program, buffers, profile))
    }

    fn assemble(&self, program: &Program, buffers: Vec<Buffer>, profile: &BackendProfile) -> Prediction {
        let [start, .., end] = self.phases;
        let mut change = vec![0i128; end - start + 1];
        for buffer in &buffers {
            change[buffer.born] += i128::from(buffer.bytes);
            change[buffer.dies + 1] -= i128::from(buffer.bytes);
        }
        let mut live = 0i128;
        let operations: Vec<Operation> = program.operations[start..end]
            .iter()
            .zip(&change)
            .map(|(op, change)| {
                live += change;
                let live_bytes = u64::try_from(live).unwrap_or(0);
                Operation { name: op.kind().to_owned(), live_bytes, seconds: time::seconds(program, op, profile) }
            })
            .collect();
        let phases = [Phase::Forward, Phase::Backward, Phase::Optimizer].into_iter().zip(self.phases.windows(2));
        let phases = phases.map(|(phase, bounds)| {
            let (first, end) = (bounds[0] - start, bounds[1] - start);
            let peak_bytes = operations[first..end].iter().map(|op| op.live_bytes).max().unwrap_or(0);
            PhasePeak { phase, first, end, peak_bytes }
        });
        let phases = phases.collect();
        let peak_bytes = operations.iter().map(|op| op.live_bytes).max().unwrap_or(0);
        let peak_at = operations.iter().position(|op| op.live_bytes == peak_bytes).unwrap_or(0);
        let mut prediction =
            Prediction { peak_bytes, peak_at, breakdown: Breakdown::default(), phases, operations, buffers };
        prediction.breakdown = prediction.breakdown_at(peak_at);
        prediction
    }

    /// The last operation that each tensor is alive in.
    ///
    /// The recorder says when the last handle is handed to an operation, and not when one is dropped. So a tensor is taken to be
    /// gone after its last use, but for what a step must leave behind: parameters and optimizer state.
    fn ends(&self, program: &Program) -> Vec<usize> {
        let [.., update, end] = self.phases;
        let mut ends = vec![0; program.tensors.len()];
        let mut consumed = vec![false; program.tensors.len()];
        let mut born = vec![0; program.tensors.len()];
        for (index, op) in program.operations.iter().enumerate() {
            for input in &op.inputs {
                ends[input.tensor] = index;
                consumed[input.tensor] |= input.last;
            }
            for output in &op.outputs {
                (ends[*output], born[*output]) = (index, index);
            }
        }
        for (tensor, info) in self.tensors.iter().enumerate() {
            if consumed[tensor] && info.role != TraceRole::Updated {
                continue;
            }
            // What is old and read by the update is held until its chunk is new.
            let released = self.releases.iter().find(|place| ends[tensor] >= update && **place >= ends[tensor]);
            ends[tensor] = match (info.role, released) {
                (TraceRole::Updated, _) => end,
                (TraceRole::Parameter | TraceRole::Gradient, Some(place)) => *place,
                (_, Some(place)) if born[tensor] < self.phases[0] => *place,
                (TraceRole::Parameter, None) => end,
                _ if born[tensor] >= update => end,
                _ => ends[tensor],
            };
        }
        ends
    }

    fn buffer(&self, program: &Program, block: &Block, profile: &BackendProfile) -> Buffer {
        let [start, backward, update, end] = self.phases;
        let made_for = block.tensors[0];
        let info = &program.tensors[made_for];
        let of_role = |role| block.tensors.iter().find(|tensor| self.tensors[**tensor].role == role);
        let parameter = of_role(TraceRole::Parameter).or(of_role(TraceRole::Updated));
        let gradient = of_role(TraceRole::Gradient);
        let category = if parameter.is_some() {
            Category::Parameter
        } else if gradient.is_some() {
            Category::Gradient
        } else if of_role(TraceRole::Input).is_some() {
            Category::Input
        } else if block.born < start || (block.born >= update && block.dies >= end) {
            Category::OptimizerState
        } else if block.born < backward && block.dies >= backward {
            Category::Activation
        } else {
            Category::Transient
        };
        // State is known by the update that reads it, not by what was in its memory before.
        let state = block.tensors.last().filter(|_| category == Category::OptimizerState);
        let named = parameter.or(gradient).or(state).unwrap_or(&made_for);
        let op = program.operations.get(block.born).filter(|op| op.outputs.contains(&made_for));
        Buffer {
            bytes: profile.taken(block.bytes),
            shape: info.shape.clone(),
            dtype: info.dtype.clone(),
            category,
            path: self.tensors[*named].path.clone(),
            operation: op.map_or_else(|| "(before the step)".into(), |op| op.kind().to_owned()),
            born: block.born.saturating_sub(start),
            dies: block.dies.min(end - 1) - start,
        }
    }
}

fn buffer(bytes: u64, category: Category, operation: &str, born: usize, dies: usize, path: Option<String>) -> Buffer {
    let (shape, dtype, operation) = (vec![], "U8".to_owned(), operation.to_owned());
    Buffer { bytes, shape, dtype, category, path, operation, born, dies }
}
