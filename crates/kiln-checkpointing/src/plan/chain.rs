//! Blocks that run one after the other as a plan says.

use burn::module::Module;
use burn::tensor::Device;

use super::segments::{Mode, Plan, PlanSegment};
use crate::Error;
use crate::autograd::{Checkpoint, Tensors, derive, devices_of, draw};
use crate::stream::{Source, Streamed};

/// Blocks that run one after the other, as a [`Plan`] says.
///
/// Random numbers do not depend on the plan: each run draws one seed and derives a seed for every block from it, so masks and
/// gradients under any two plans are the same bit for bit. The backward pass seeds the device as well. For a training run of
/// several steps to be independent of the plan, seed the device at every step, as a loop that can be resumed does anyway.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::activation::gelu;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_checkpointing::{Chain, Plan};
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..12).map(|_| LinearConfig::new(16, 16).init(&device)).collect();
/// let x = Tensor::<2>::random([4, 16], Distribution::Default, &device);
///
/// let plan = Plan::every(layers.len(), 3)?;
/// let y = Chain::new(&layers).deterministic().run(&plan, x, |layer, x| gelu(layer.forward(x)))?;
/// let gradients = y.mean().backward();
/// assert!(layers[0].weight.val().grad(&gradients).is_some());
/// # Ok::<(), kiln_checkpointing::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Chain<B> {
    blocks: Vec<B>,
    deterministic: bool,
    seed: Option<(ChainSeed, usize)>,
    name: Option<String>,
    streamed: Option<Streamed>,
}

/// The seed that the blocks of a chain derive theirs from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSeed(u64);

impl ChainSeed {
    /// Draws a seed from the random numbers of `device`, as each run of a chain does.
    pub fn draw(device: &Device) -> Self {
        Self(draw(device))
    }

    /// Seeds `device` as a chain does after its last block: operations after the chain must not repeat this block's numbers.
    pub fn end(self, device: &Device) {
        device.seed(derive(self.0, u64::MAX - 1));
    }

    fn block(self, number: usize) -> u64 {
        derive(self.0, number as u64)
    }
}

impl<B: Module + 'static> Chain<B> {
    /// A chain of `blocks`, first to last. It holds handles to their parameters, not copies.
    pub fn new<'a>(blocks: impl IntoIterator<Item = &'a B>) -> Self {
        let blocks = blocks.into_iter().cloned().collect();
        Self { blocks, deterministic: false, seed: None, name: None, streamed: None }
    }

    /// Promises that no block draws random numbers; see [`Checkpoint::deterministic`].
    pub fn deterministic(mut self) -> Self {
        self.deterministic = true;
        self
    }

    /// Says that these blocks are a part of a longer chain, from its block number `first` on. They take their seeds from that chain's.
    pub fn part_of(mut self, seed: ChainSeed, first: usize) -> Self {
        self.seed = Some((seed, first));
        self
    }

    /// Sets the name that errors give the chain.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Says where the parameters of streamed blocks are. A plan must stream all of these blocks.
    pub fn streamed(mut self, parameters: &Streamed) -> Self {
        self.streamed = Some(parameters.clone());
        self
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn blocks(&self) -> &[B] {
        &self.blocks
    }

    /// Passes `x` through all blocks; `f` runs one block.
    ///
    /// # Errors
    /// [`Error::PlanLength`], [`Error::NoStore`] for a plan that streams and a chain without a store, [`Error::NotStreamed`] for a plan that
    /// does not stream a block whose parameters are in the store, [`Error::Store`], and those of [`Checkpoint::run`].
    ///
    /// # Panics
    /// In the backward pass, as [`Checkpoint::run`], and with the message of [`Error::Store`].
    pub fn run<X, F>(&self, plan: &Plan, x: X, f: F) -> Result<X, Error>
    where
        X: Tensors,
        F: Fn(&B, X) -> X + Clone + Send + 'static,
    {
        if plan.blocks() != self.len() {
            return Err(Error::PlanLength { plan: plan.blocks(), chain: self.len() });
        }
        let devices = if self.deterministic { vec![] } else { devices_of(&self.blocks, x.clone()) };
        let seed = |device| self.seed.unwrap_or_else(|| (ChainSeed::draw(device), 0));
        let random = devices.first().map(seed).map(|seed| (seed, devices));
        let mut x = x;
        for (index, segment) in plan.segments().iter().enumerate() {
            let (f, random, start) = (f.clone(), random.clone(), segment.blocks.start);
            let all = move |blocks: &Vec<B>, x: X| {
                blocks.iter().enumerate().fold(x, |x, (index, block)| {
                    if let Some(((seed, first), devices)) = &random {
                        let seed = seed.block(first + start + index);
                        devices.iter().for_each(|device| device.seed(seed));
                    }
                    f(block, x)
                })
            };
            let blocks = self.blocks[segment.blocks.clone()].to_vec();
            let emptied = self.streamed.as_ref().is_some_and(|streamed| !streamed.values_of(&blocks).is_empty());
            if emptied && segment.mode != Mode::Stream {
                return Err(Error::NotStreamed { plan: plan.to_string(), block: segment.blocks.start });
            }
            // The closure seeds every block itself.
            let chain = self.name.as_deref().unwrap_or("the chain");
            let name = format!("{}..{} of {chain}", segment.blocks.start, segment.blocks.end);
            let segment_of = || Checkpoint::new().named(name).deterministic();
            x = match segment.mode {
                Mode::Plain => all(&blocks, x),
                Mode::Recompute => segment_of().run(&blocks, x, all)?,
                Mode::Offload => segment_of().offload().run(&blocks, x, all)?,
                Mode::Stream => {
                    let streamed = self.streamed.as_ref().ok_or_else(|| Error::NoStore { plan: plan.to_string() })?;
                    let read = |segment: Option<&PlanSegment>| match segment {
                        Some(PlanSegment { blocks, mode: Mode::Stream }) => {
                            streamed.values_of(&self.blocks[blocks.clone()])
                        }
                        _ => vec![],
                    };
                    let before = index.checked_sub(1).and_then(|before| plan.segments().get(before));
                    let neighbours = [read(plan.segments().get(index + 1)), read(before)];
                    segment_of().streamed(Source { parameters: streamed.clone(), neighbours }).run(&blocks, x, all)?
                }
            };
        }
        if let Some(((seed, _), devices)) = random {
            devices.iter().for_each(|device| seed.end(device));
        }
        Ok(x)
    }
}
