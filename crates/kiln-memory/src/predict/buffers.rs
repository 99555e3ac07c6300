//! Every buffer of a step, with its category and module.

use std::cmp::Reverse;

use crate::category::{Breakdown, Category, Phase};
use crate::error::Error;
use crate::trace::{StepTrace, TraceRole};

use super::layout::Layout;
use super::margin::overheads;
use super::memory::Block;
use super::profile::BackendProfile;
use super::sizes::Sizes;
use super::time::Clock;
use super::{Buffer, Operation, PhasePeak, Prediction};

impl StepTrace {
    /// Predicts every buffer of the step at a batch size on a device, and the peak.
    ///
    /// It counts everything that the recorded operations allocate, by the device's rules for views and reuse, and the workspace of its
    /// kernels. It does not count the program itself and fragmentation of the allocator. The host's copy of the batch and a data loader
    /// are counted if the profile has their bytes ([`with_loader_bytes`](BackendProfile::with_loader_bytes)).
    ///
    /// [`estimate`](Self::estimate) gives the same peak and times faster.
    ///
    /// # Errors
    /// [`Error::BatchSize`] for 0, and for a size whose bytes cannot be counted.
    pub fn predict(&self, batch: usize, profile: &BackendProfile) -> Result<Prediction, Error> {
        let sizes = Sizes::of(self, batch, profile)?;
        let layout = Layout::of(self, &sizes, profile);
        let [start, .., end] = self.phases;
        let mut buffers: Vec<Buffer> = vec![];
        for block in layout.blocks.iter().filter(|block| block.dies as usize >= start && (block.born as usize) < end) {
            buffers.push(self.buffer(&layout, block, &sizes, profile));
        }
        for index in (start..end).filter(|index| layout.workspaces[*index] > 0) {
            let path = self.graph.outputs_at(index).first().and_then(|output| self.path_of(*output as usize));
            let (name, at) = (self.graph.kind_at(index).short(), index - start);
            let mut workspace = without_tensor(layout.workspaces[index], Category::Workspace, name, at..=at);
            workspace.path = path.map(str::to_owned);
            buffers.push(workspace);
        }
        for overhead in overheads(self, batch, profile) {
            buffers.push(without_tensor(overhead.bytes, overhead.category, overhead.name, 0..=overhead.last));
        }
        buffers.sort_by_key(|buffer| (buffer.born, Reverse(buffer.bytes)));
        Ok(self.assemble(&sizes, buffers, profile))
    }

    fn assemble(&self, sizes: &Sizes, buffers: Vec<Buffer>, profile: &BackendProfile) -> Prediction {
        let [start, .., end] = self.phases;
        let clock = Clock::new(self, sizes, profile);
        let mut change = vec![0i128; end - start + 1];
        for buffer in &buffers {
            change[buffer.born] += i128::from(buffer.bytes);
            change[buffer.dies + 1] -= i128::from(buffer.bytes);
        }
        let mut live = 0i128;
        let operations = (start..end).zip(&change).map(|(index, change)| {
            live += change;
            let live_bytes = u64::try_from(live).unwrap_or(0);
            let name = self.graph.kind_at(index).short().to_owned();
            Operation { name, live_bytes, seconds: clock.seconds(index) }
        });
        let operations: Vec<Operation> = operations.collect();
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

    fn buffer(&self, layout: &Layout, block: &Block, sizes: &Sizes, profile: &BackendProfile) -> Buffer {
        let [start, backward, update, end] = self.phases;
        let (born, dies) = (block.born as usize, block.dies as usize);
        let role_of = |tensor: u32| self.tensors[tensor as usize].role;
        let of_role = |role| layout.tensors_of(block).find(|tensor| role_of(*tensor) == role);
        let parameter = of_role(TraceRole::Parameter).or_else(|| of_role(TraceRole::Updated));
        let gradient = of_role(TraceRole::Gradient);
        let category = if parameter.is_some() {
            Category::Parameter
        } else if gradient.is_some() {
            Category::Gradient
        } else if of_role(TraceRole::Input).is_some() {
            Category::Input
        } else if born < start || (born >= update && dies >= end) {
            Category::OptimizerState
        } else if born < backward && dies >= backward {
            Category::Activation
        } else {
            Category::Transient
        };
        // Optimizer state is named by the update that reads it, not by the tensor whose memory it reuses.
        let state = (category == Category::OptimizerState).then_some(block.last);
        let named = parameter.or(gradient).or(state).unwrap_or(block.first);
        let made_here = born < self.graph.operations.len() && self.graph.outputs_at(born).contains(&block.first);
        let operation = if made_here { self.graph.kind_at(born).short() } else { "before the step" };
        Buffer {
            bytes: profile.taken(block.bytes),
            shape: sizes.shape(block.first).to_vec(),
            dtype: format!("{:?}", self.tensors[block.first as usize].dtype),
            category,
            path: self.path_of(named as usize).map(str::to_owned),
            operation: operation.to_owned(),
            born: born.saturating_sub(start),
            dies: dies.min(end - 1) - start,
        }
    }
}

/// A buffer that does not belong to a tensor.
fn without_tensor(bytes: u64, category: Category, operation: &str, alive: std::ops::RangeInclusive<usize>) -> Buffer {
    Buffer {
        bytes,
        shape: vec![],
        dtype: "U8".to_owned(),
        category,
        path: None,
        operation: operation.to_owned(),
        born: *alive.start(),
        dies: *alive.end(),
    }
}
