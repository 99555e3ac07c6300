//! Memory and time of a chain's blocks, and the peak and extra time of a plan.

use serde::{Deserialize, Serialize};

use super::segments::{Mode, Plan, PlanSegment};
use crate::Error;

/// Memory and time of one block, measured by [`measure_blocks`](crate::measure_blocks) or estimated in another way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes of its input.
    pub input: u64,
    /// Bytes it keeps for its backward pass, its input included.
    pub saved: u64,
    /// Bytes that it needs beyond [`saved`](Self::saved) while it runs, forward or backward.
    pub workspace: u64,
    /// Bytes of its parameters' gradients.
    pub gradients: u64,
    /// Bytes of gradients that exist beside their sums until its segment has been recomputed, if a plain block adds to sums where it makes
    /// gradients.
    pub unsummed: u64,
    /// Bytes of its parameters.
    pub parameters: u64,
    /// Bytes of the optimizer state of its parameters, and of the sums of their gradients if these exist throughout a step.
    pub state: u64,
    /// Seconds of its forward pass.
    pub forward: f64,
}

impl Cost {
    /// Bytes that a step reads from a store and writes to it when the block is streamed: its input, its parameters for both passes, its
    /// gradients, and all of these with the optimizer's state for the update.
    pub fn traffic(&self) -> u64 {
        let update = self.parameters.saturating_mul(6).saturating_add(self.state.saturating_mul(2));
        update.saturating_add(self.input.saturating_mul(2))
    }
}

/// Memory and time of a chain of blocks, and the memory that is in use beside them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChainCost {
    /// The blocks, first to last.
    pub blocks: Vec<Cost>,
    /// Bytes in use throughout when no block is streamed: parameters and optimizer state, those of the blocks included.
    pub resident: u64,
    /// Peak bytes of the layers after the chain: the head, the loss.
    pub head: u64,
    /// Seconds to move a byte to the host and back; none when no input may be offloaded.
    pub transfer: Option<f64>,
    /// Seconds to move a byte to a store or from it; none when no block may be streamed.
    pub store: Option<f64>,
}

/// Peak memory and extra time of a step under a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanCost {
    /// The most bytes in use at once.
    pub peak: u64,
    /// Seconds that a step takes beyond those of the plain chain.
    pub extra: f64,
}

/// Time as an integer, so that sums do not depend on their order.
pub(crate) type Picoseconds = u64;

pub(crate) fn picoseconds(seconds: f64) -> Picoseconds {
    (seconds * 1e12).round() as Picoseconds
}

impl ChainCost {
    /// The costs of `blocks`, first to last, with nothing beside them and without offloading.
    pub fn new(blocks: Vec<Cost>) -> Self {
        Self { blocks, ..Self::default() }
    }

    /// Sets the bytes that are in use throughout a step: parameters, optimizer state.
    pub fn with_resident(mut self, bytes: u64) -> Self {
        self.resident = bytes;
        self
    }

    /// Sets the peak bytes of the layers after the chain: the head, the loss.
    pub fn with_head(mut self, bytes: u64) -> Self {
        self.head = bytes;
        self
    }

    /// Allows inputs to be offloaded, at `seconds` per byte to the host and back.
    pub fn with_transfer(mut self, seconds: f64) -> Self {
        self.transfer = Some(seconds);
        self
    }

    /// Allows blocks to be streamed, at `seconds` per byte of their [traffic](Cost::traffic).
    pub fn with_store(mut self, seconds: f64) -> Self {
        self.store = Some(seconds);
        self
    }

    /// Checks that times are numbers of at least 0, and that all of them, and all bytes, can be added up.
    ///
    /// # Errors
    /// [`Error::InvalidCost`].
    pub fn check(&self) -> Result<(), Error> {
        const EXPECTED: &str = "at least 0, and all together below 1e6 seconds";
        let (transfer, store) = (self.transfer.unwrap_or(0.0), self.store.unwrap_or(0.0));
        let mut total = 0.0;
        for cost in &self.blocks {
            let times = [
                ("forward time", cost.forward),
                ("transfer time", cost.input as f64 * transfer),
                ("store time", cost.traffic() as f64 * store),
            ];
            for (field, value) in times {
                total += value;
                if value.is_nan() || value < 0.0 || total >= 1e6 {
                    return Err(Error::InvalidCost { field, value, expected: EXPECTED });
                }
            }
        }
        let of = |cost: &Cost| {
            let Cost { input, saved, workspace, gradients, unsummed, parameters, state, .. } = *cost;
            [input, saved, workspace, gradients, unsummed, parameters, state]
        };
        let bytes = self.blocks.iter().flat_map(of);
        let total: f64 = bytes.chain([self.resident, self.head]).map(|bytes| bytes as f64).sum();
        if total >= 1e18 {
            return Err(Error::InvalidCost { field: "sum of all bytes", value: total, expected: "less than 1e18" });
        }
        Ok(())
    }

    /// Peak and extra time of `plan`. [`solve`](crate::solve) uses the same model of a step:
    ///
    /// 1. In the forward pass each segment leaves bytes in use: its activations when plain, its input when recomputed, none
    ///    when offloaded or streamed.
    /// 2. The head runs with all of these in use.
    /// 3. In the backward pass, from the last segment to the first, a segment needs its activations beside the bytes of the
    ///    segments before it and the parameter gradients computed so far. A recomputed one also needs its [`unsummed`](Cost::unsummed) gradients.
    /// 4. Parameters, state and gradients of streamed blocks are not in use, except that a streamed segment needs its parameters and
    ///    its gradients.
    ///
    /// # Errors
    /// [`Error::PlanLength`], [`Error::InvalidCost`].
    pub fn simulate(&self, plan: &Plan) -> Result<PlanCost, Error> {
        self.check()?;
        if plan.blocks() != self.blocks.len() {
            return Err(Error::PlanLength { plan: plan.blocks(), chain: self.blocks.len() });
        }
        let left = self.left_by(plan);
        let sums = Sums::new(&left);
        let (mut held, mut peak, mut extra) = (0, 0, 0);
        for PlanSegment { blocks, mode } in plan.segments() {
            let parts: Vec<_> = match mode {
                // A plain segment frees its blocks one by one.
                Mode::Plain => blocks.clone().map(|block| block..block + 1).collect(),
                _ => vec![blocks.clone()],
            };
            for part in parts {
                let step = match mode {
                    Mode::Stream => self.streamed(&sums, part.clone()),
                    _ => sums.step(part.start, part.end, *mode),
                };
                peak = peak.max(held + step.needs);
                held += step.holds;
                extra += step.extra;
            }
        }
        let peak = peak.max(held + sums.after());
        Ok(PlanCost { peak, extra: extra as f64 * 1e-12 })
    }
}

/// Memory and time of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Bytes in use from its forward to its backward pass.
    pub(crate) holds: u64,
    /// Bytes at its peak, beside those held by the segments before it.
    pub(crate) needs: u64,
    pub(crate) extra: Picoseconds,
}

/// A chain's costs as prefix sums.
pub(crate) struct Sums<'a> {
    cost: &'a ChainCost,
    saved: Vec<u64>,
    unsummed: Vec<u64>,
    forward: Vec<Picoseconds>,
    /// Gradient bytes of all blocks from one on.
    gradients: Vec<u64>,
    /// The blocks that are streamed.
    streamed: Vec<Option<Step>>,
}

impl<'a> Sums<'a> {
    pub(crate) fn new(cost: &'a ChainCost) -> Self {
        let (mut saved, mut unsummed, mut forward) = (vec![0], vec![0], vec![0]);
        let (mut all_saved, mut all_unsummed, mut all_forward) = (0, 0, 0);
        for block in &cost.blocks {
            all_saved += block.saved;
            all_unsummed += block.unsummed;
            all_forward += picoseconds(block.forward);
            saved.push(all_saved);
            unsummed.push(all_unsummed);
            forward.push(all_forward);
        }
        let mut gradients = vec![0; cost.blocks.len() + 1];
        for (index, block) in cost.blocks.iter().enumerate().rev() {
            gradients[index] = gradients[index + 1] + block.gradients;
        }
        Self { cost, saved, unsummed, forward, gradients, streamed: vec![None; cost.blocks.len()] }
    }

    /// Streams blocks, each as a segment.
    pub(crate) fn stream(&mut self, blocks: impl IntoIterator<Item = (usize, Step)>) {
        blocks.into_iter().for_each(|(block, step)| self.streamed[block] = Some(step));
    }

    /// A block's segment if the block is streamed.
    pub(crate) fn streamed(&self, block: usize) -> Option<Step> {
        self.streamed[block]
    }

    /// The blocks from `from` to `to` as one segment.
    pub(crate) fn step(&self, from: usize, to: usize, mode: Mode) -> Step {
        let workspace = self.cost.blocks[from..to].iter().map(|cost| cost.workspace).max().unwrap_or(0);
        self.step_with(from, to, mode, workspace)
    }

    /// [`step`](Self::step) for a caller that knows the largest workspace of the blocks.
    pub(crate) fn step_with(&self, from: usize, to: usize, mode: Mode, workspace: u64) -> Step {
        let activations = self.saved[to] - self.saved[from];
        let input = self.cost.blocks[from].input;
        let around = self.cost.resident + self.gradients[from] + workspace;
        let again = self.forward[to] - self.forward[from];
        let replayed = input + activations + self.unsummed[to] - self.unsummed[from];
        match mode {
            Mode::Plain => Step { holds: activations, needs: around + activations, extra: 0 },
            // What is streamed is added by `ChainCost::streamed`.
            Mode::Stream => Step { holds: 0, needs: around + input + activations, extra: again },
            Mode::Recompute => Step { holds: input, needs: around + replayed, extra: again },
            Mode::Offload => {
                let transfer = picoseconds(input as f64 * self.cost.transfer.unwrap_or(0.0));
                Step { holds: 0, needs: around + replayed, extra: again + transfer }
            }
        }
    }

    /// Bytes that the head needs beside those held by all segments.
    pub(crate) fn after(&self) -> u64 {
        self.cost.resident + self.cost.head
    }

    pub(crate) fn blocks(&self) -> usize {
        self.cost.blocks.len()
    }

    /// Bytes that a block holds when it is plain, and the time of its forward pass. None for a block that is streamed.
    pub(crate) fn block(&self, block: usize) -> (u64, Picoseconds) {
        if self.streamed[block].is_some() {
            return (0, 0);
        }
        (self.saved[block + 1] - self.saved[block], self.forward[block + 1] - self.forward[block])
    }

    pub(crate) fn workspace(&self, block: usize) -> u64 {
        self.cost.blocks[block].workspace
    }

    pub(crate) fn offloads(&self) -> bool {
        self.cost.transfer.is_some()
    }
}
