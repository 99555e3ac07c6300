//! One pass of a task over a batch: the model, the device, and how chains of blocks are run.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use kiln_checkpointing::{Chain, ChainSeed, Mode, Plan, PlanSegment, RowParts, Streamed, TensorMap, Tensors};
use kiln_memory::Recorder;

use crate::error::Error;
use crate::planning::Asked;
use crate::stages::StagePass;

/// A model that a [`Task`](crate::Task) computes a loss or metrics with, and the device to compute on.
///
/// A task runs the same code for three purposes: in training under a checkpoint plan, in evaluation, and once while a step is recorded to
/// predict its memory. A task does not need to tell them apart.
pub struct Pass<'a, M> {
    model: &'a M,
    /// The device of the stage that the pass is in.
    device: Cell<&'a Device>,
    /// The devices of the model, if it is evaluated and is on several devices.
    devices: Vec<Device>,
    /// Index of the device that the pass has reached.
    come_to: Cell<Option<usize>>,
    purpose: Purpose<'a>,
    /// The store of parameters of blocks, if they are in one.
    streamed: Option<&'a Streamed>,
    /// The block that the next chain begins with, in the numbering of the plan.
    next_block: Cell<usize>,
    failed: RefCell<Option<Error>>,
    /// One element of each tensor that was named.
    named: RefCell<Vec<Tensor<1>>>,
}

/// What a pass is for, which decides how chains are run.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// One block after the other.
    Evaluation,
    /// One block after the other, with a recorded cut at both ends of each block. The lengths of the chains are noted.
    Recording { recorder: &'a Recorder, chains: &'a RefCell<Vec<usize>>, asked: &'a Asked },
    /// Under the checkpoint plan. In stages, some blocks are the last of their stage.
    Training { plan: &'a Plan, draws_random: bool, stages: Option<StagePass<'a>> },
}

impl<'a, M> Pass<'a, M> {
    fn new(model: &'a M, device: &'a Device, purpose: Purpose<'a>) -> Self {
        Self {
            model,
            device: Cell::new(device),
            devices: vec![],
            come_to: Cell::new(None),
            purpose,
            streamed: None,
            next_block: Cell::new(0),
            failed: RefCell::new(None),
            named: RefCell::default(),
        }
    }

    /// A pass without a plan, for evaluation and for trying a task by hand. If the model's parameters are on several devices,
    /// [`chain`](Self::chain) moves the input of each block to the block's device.
    pub fn plain(model: &'a M, device: &'a Device) -> Self
    where
        M: Module,
    {
        let devices = Some(model.devices()).filter(|devices| devices.len() > 1).unwrap_or_default();
        Self { devices, ..Self::new(model, device, Purpose::Evaluation) }
    }

    /// The pass that is recorded.
    pub(crate) fn recorded(
        model: &'a M,
        recorder: &'a Recorder,
        chains: &'a RefCell<Vec<usize>>,
        asked: &'a Asked,
    ) -> Self {
        Self::new(model, recorder.device(), Purpose::Recording { recorder, chains, asked })
    }

    /// A training pass; `draws_random` says whether blocks may draw random numbers.
    pub(crate) fn training(model: &'a M, device: &'a Device, plan: &'a Plan, draws_random: bool) -> Self {
        Self::new(model, device, Purpose::Training { plan, draws_random, stages: None })
    }

    /// A training pass through stages.
    pub(crate) fn in_stages(model: &'a M, plan: &'a Plan, draws_random: bool, stages: StagePass<'a>) -> Self {
        Self::new(model, stages.device(), Purpose::Training { plan, draws_random, stages: Some(stages) })
    }

    /// Says where the parameters of blocks are.
    pub(crate) fn streamed(self, streamed: Option<&'a Streamed>) -> Self {
        Self { streamed, ..self }
    }

    /// The model.
    pub fn model(&self) -> &'a M {
        self.model
    }

    /// The device to make tensors on. In a model that is divided into stages, the device changes where a stage ends, in
    /// [`chain`](Self::chain). Tensors that were made before go there by [`to_device`](Self::to_device).
    pub fn device(&self) -> &Device {
        match self.come_to.get() {
            Some(device) => &self.devices[device],
            None => self.device.get(),
        }
    }

    /// A copy of host data on the pass's device.
    ///
    /// Works for burn's `TensorData` and for tensors of any kind on another device.
    pub fn input<const D: usize, K: Basic>(&self, source: impl Input<D, K>) -> Tensor<D, K> {
        source.on(self.device())
    }

    /// Moves `tensors` to the device that the pass has reached. Use it for targets: they are copied with the inputs, and the loss
    /// compares them with the output of a [`chain`](Self::chain). On one device it returns them unchanged.
    ///
    /// Tensors with a gradient go from stage to stage as a part of the chain's value only.
    pub fn to_device<X: Tensors>(&self, tensors: X) -> X {
        tensors.map(&mut To(self.device()))
    }

    /// Runs `x` through `blocks`, one after the other; `f` runs one block.
    ///
    /// A model calls it to have its blocks recomputed, offloaded or divided into stages, as PyTorch's `checkpoint_sequential` is called. While a step is recorded the pass notes where
    /// each block begins and ends; in training it recomputes or offloads the segments that the plan names; in evaluation it runs
    /// the blocks as they are. The result has the same bits in all cases, dropout included.
    ///
    /// `f` may use only values of the block and of `x`. A pass may have several chains.
    pub fn chain<'b, B, X, F>(&self, blocks: impl IntoIterator<Item = &'b B>, x: X, f: F) -> X
    where
        B: Module + 'static,
        X: Tensors,
        F: Fn(&B, X) -> X + Clone + Send + 'static,
    {
        match self.purpose {
            Purpose::Evaluation => blocks.into_iter().fold(x, |x, block| {
                let x = self.followed(block, x);
                match self.streamed.map(|streamed| streamed.filled(block.clone())) {
                    None => f(block, x),
                    Some(Ok(block)) => f(&block, x),
                    Some(Err(error)) => {
                        // The evaluation ends with this error; the pass still needs a value.
                        *self.failed.borrow_mut() = Some(error.into());
                        f(block, x)
                    }
                }
            }),
            Purpose::Recording { recorder, chains, .. } => {
                recorder.cut();
                let mut length = 0;
                let x = blocks.into_iter().fold(x, |x, block| {
                    let x = f(block, x);
                    recorder.cut();
                    length += 1;
                    x
                });
                chains.borrow_mut().push(length);
                x
            }
            Purpose::Training { plan, draws_random, stages } => {
                let (blocks, first) = self.numbered(blocks);
                // While a pass waits at the end of a stage, other micro-batches draw random numbers.
                let draws = draws_random && stages.is_some() && !blocks.is_empty();
                let seed = draws.then(|| ChainSeed::draw(self.device()));
                let (mut x, mut next) = (x, 0);
                for end in 1..=blocks.len() {
                    let begins = |stages: StagePass<'_>| stages.division.stage_at(first + end).is_some();
                    if end == blocks.len() || stages.is_some_and(begins) {
                        x = self.crossed(stages, first + next, x);
                        let part = Chain::new(blocks[next..end].iter().copied());
                        let part = if draws_random { part } else { part.deterministic() };
                        let part = seed.iter().fold(part, |part, seed| part.part_of(*seed, next));
                        x = self.part(part, first + next, x, f.clone(), plan);
                        next = end;
                    }
                }
                let x = self.crossed(stages, first + next, x);
                seed.iter().for_each(|seed| seed.end(self.device()));
                x
            }
        }
    }

    /// Moves `x` to the device of `block`, which becomes the device of the pass.
    fn followed<X: Tensors>(&self, block: &impl Module, x: X) -> X {
        if self.devices.is_empty() {
            return x;
        }
        let device = block.devices().first().and_then(|first| self.devices.iter().position(|device| device == first));
        match device {
            Some(device) => {
                self.come_to.set(Some(device));
                x.map(&mut To(&self.devices[device]))
            }
            None => x,
        }
    }

    /// The blocks of a chain, and the number of the first one in the plan.
    fn numbered<'b, B>(&self, blocks: impl IntoIterator<Item = &'b B>) -> (Vec<&'b B>, usize) {
        let blocks: Vec<&B> = blocks.into_iter().collect();
        let first = self.next_block.get();
        // A recording counts the operations between two chains as one block.
        self.next_block.set(first + blocks.len() + 1);
        (blocks, first)
    }

    /// Runs blocks, the first of which has the number `first`, as a plan says.
    fn part<B, X, F>(&self, chain: Chain<B>, first: usize, x: X, f: F, plan: &Plan) -> X
    where
        B: Module + 'static,
        X: Tensors,
        F: Fn(&B, X) -> X + Clone + Send + 'static,
    {
        let chain = match self.streamed {
            Some(streamed) => chain.streamed(streamed),
            None => chain,
        };
        let plan = part_of(plan, first..first + chain.len());
        // The step ends with an error of the chain; the pass still needs a value. The floats of the input must not stay in memory for it.
        let input = x.clone().map(&mut Hollow);
        match chain.run(&plan, x, f.clone()) {
            Ok(x) => x,
            Err(error) => {
                *self.failed.borrow_mut() = Some(error.into());
                let plain = Plan::none(chain.len());
                chain.run(&plain, input.clone(), f).unwrap_or(input)
            }
        }
    }

    /// Ends the current stage, if another one begins with block number `block`.
    fn crossed<X: Tensors>(&self, stages: Option<StagePass<'a>>, block: usize, x: X) -> X {
        let Some(stages) = stages else { return x };
        let (x, crossed) = stages.cross(block, x);
        match crossed {
            Ok(()) => self.device.set(stages.device()),
            Err(error) => *self.failed.borrow_mut() = Some(error),
        }
        x
    }

    /// Whether blocks are in a store. The memory of a step is then that of its largest block, so that a task may divide its blocks into smaller
    /// ones, and the plan is about those. Blocks that draw random numbers must stay whole to keep the bits: each draws its own.
    pub fn streams(&self) -> bool {
        match self.purpose {
            Purpose::Recording { asked, .. } => asked.streams(),
            Purpose::Training { plan, .. } => plan.streams(),
            Purpose::Evaluation => self.streamed.is_some(),
        }
    }

    /// The rows of a large matrix, an embedding's or an output layer's, for operations that read some at a time:
    /// `kiln_layers::embedding_by_rows` and `LinearCrossEntropy::forward_by_rows`. `None` if the matrix is in memory, and the task then reads the
    /// parameter as usual. Loss and gradients have the same bits in both cases.
    ///
    /// A task that asks for the rows of a parameter must use it in no other way when it gets them.
    pub fn rows(&self, parameter: &Param<Tensor<2>>) -> Option<Arc<dyn RowParts>> {
        match self.purpose {
            Purpose::Recording { asked, .. } => asked.rows(parameter),
            Purpose::Evaluation | Purpose::Training { .. } => self.streamed?.rows(parameter.id),
        }
    }

    /// Names a tensor that must have been written for the step to count.
    ///
    /// On a device with a queue (CUDA), a tensor whose memory was refused looks valid. Results computed from it are not written either,
    /// down to the gradients, which the step checks. Some operations hide the loss: a concatenation counts as written even if one of its
    /// parts was never written. A task that concatenates should name the parts, or the values that they are computed from:
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use kiln_training::Pass;
    /// fn joined<M>(pass: &Pass<'_, M>, left: Tensor<2>, right: Tensor<2>) -> Tensor<2> {
    ///     pass.check_written(&left);
    ///     pass.check_written(&right);
    ///     Tensor::cat(vec![left, right], 1)
    /// }
    /// ```
    ///
    /// The cost is a copy of one element and one query to the device's thread. Outside of training it does nothing.
    pub fn check_written<const D: usize>(&self, tensor: &Tensor<D>) {
        if matches!(self.purpose, Purpose::Training { .. }) && !tensor.dims().contains(&0) {
            let element = tensor.clone().inner().slice(std::array::from_fn::<_, D, _>(|_| 0..1));
            self.named.borrow_mut().push(element.reshape([1]));
        }
    }

    /// Ends the pass.
    ///
    /// # Errors
    /// That of a [`chain`](Self::chain), which returns a value in any case: [`Error::Checkpointing`].
    pub fn finish(self) -> Result<(), Error> {
        self.into_named().map(|_| ())
    }

    /// Returns one element of each tensor that was named, or the error of a chain.
    pub(crate) fn into_named(self) -> Result<Vec<Tensor<1>>, Error> {
        let in_store = self.streamed.and_then(Streamed::take_failure).map(Error::from);
        match self.failed.into_inner().or(in_store) {
            Some(error) => Err(error),
            None => Ok(self.named.into_inner()),
        }
    }
}

/// Makes the passes of an evaluation: on one device, and with parameters that may be in a store.
#[derive(Clone, Debug)]
pub struct Passes {
    device: Device,
    streamed: Option<Streamed>,
}

impl Passes {
    /// Passes on `device`, without autodiff, of models that are in memory.
    pub fn on(device: &Device) -> Self {
        Self { device: device.clone().inner(), streamed: None }
    }

    /// Says where the parameters of blocks are.
    pub(crate) fn streamed(self, streamed: Option<&Streamed>) -> Self {
        Self { streamed: streamed.cloned(), ..self }
    }

    /// The device, without autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A pass of `model`, which should be [valid](Module::valid).
    pub fn of<'a, M: Module>(&'a self, model: &'a M) -> Pass<'a, M> {
        Pass::plain(model, &self.device).streamed(self.streamed.as_ref())
    }
}

/// Makes tensors of the same shapes that take no memory. Their values have no meaning.
struct Hollow;

impl TensorMap for Hollow {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let element = Tensor::<D>::empty([1; D], (&tensor.device(), tensor.dtype()));
        element.expand::<D, _>(tensor.shape())
    }
}

/// Moves tensors to a device.
struct To<'a>(&'a Device);

impl TensorMap for To<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        // burn records a move in the graph even if the tensor stays where it is.
        if tensor.device() == *self.0 { tensor } else { tensor.to_device(self.0) }
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        if tensor.device() == *self.0 { tensor } else { tensor.to_device(self.0) }
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        if tensor.device() == *self.0 { tensor } else { tensor.to_device(self.0) }
    }
}

/// Host data that [`Pass::input`] copies to a device.
pub trait Input<const D: usize, K: Basic> {
    /// The copy on `device`.
    fn on(self, device: &Device) -> Tensor<D, K>;
}

impl<const D: usize, K: Basic> Input<D, K> for &TensorData {
    fn on(self, device: &Device) -> Tensor<D, K> {
        Tensor::from_data(self.clone(), device)
    }
}

impl<const D: usize, K: Basic> Input<D, K> for &Tensor<D, K> {
    fn on(self, device: &Device) -> Tensor<D, K> {
        // The copy goes through host data, because the device that records steps takes no tensors of other devices.
        Tensor::from_data(self.to_data(), device)
    }
}

/// The part of a plan that falls on a chain's `blocks`, counted from the chain's first block. Blocks that the plan does not reach
/// run plainly.
fn part_of(plan: &Plan, blocks: Range<usize>) -> Plan {
    let mut segments = vec![];
    let mut next = blocks.start;
    for segment in plan.segments() {
        let (start, end) = (segment.blocks.start.max(blocks.start), segment.blocks.end.min(blocks.end));
        if start < end {
            segments.push(PlanSegment { blocks: start - blocks.start..end - blocks.start, mode: segment.mode });
            next = end;
        }
    }
    if next < blocks.end {
        segments.push(PlanSegment { blocks: next - blocks.start..blocks.len(), mode: Mode::Plain });
    }
    Plan::try_from(segments).unwrap_or_else(|_| Plan::none(blocks.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_takes_its_part_of_the_plan() {
        let plan = Plan::every(9, 2).unwrap(); // 0..2, 2..4, 4..6, 6..8 recompute, 8..9 plain
        assert_eq!(part_of(&plan, 0..9), plan);
        assert_eq!(part_of(&plan, 0..3).to_string(), "0..2 recompute, 2..3 recompute");
        assert_eq!(part_of(&plan, 7..9).to_string(), "every:1");
        assert_eq!(part_of(&plan, 8..12), Plan::none(4));
        assert_eq!(part_of(&Plan::none(0), 0..3), Plan::none(3));
        assert_eq!(part_of(&plan, 3..3), Plan::none(0));
    }
}
