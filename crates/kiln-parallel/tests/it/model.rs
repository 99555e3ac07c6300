//! A small chain of blocks that is cut into stages, and its gradients.

use std::collections::BTreeMap;
use std::sync::Mutex;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, FloatDType, Gradients, Tensor, TensorData};
use kiln_parallel::{Error, Pipeline, PipelineOutput, StageBoundary, Stopped};

pub(crate) const WIDTH: usize = 8;
const ROWS: usize = 3;

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

#[derive(Module, Debug)]
pub(crate) struct Block {
    norm: LayerNorm,
    linear: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct Chain {
    embed: Linear,
    blocks: Vec<Block>,
    /// Whether the last layer multiplies by the first one's weight.
    tied: bool,
    head: Linear,
}

impl Chain {
    pub(crate) fn new(blocks: usize, tied: bool) -> Self {
        let device = device();
        let linear = || LinearConfig::new(WIDTH, WIDTH).init(&device);
        let block = || Block { norm: LayerNormConfig::new(WIDTH).init(&device), linear: linear() };
        Self { embed: linear(), blocks: (0..blocks).map(|_| block()).collect(), tied, head: linear() }
    }

    /// The loss of one micro-batch. A stage ends before each block of `cuts`.
    pub(crate) fn forward<E: From<Error>>(
        &self,
        x: Tensor<2>,
        cuts: &[usize],
        boundary: Option<&StageBoundary<'_>>,
    ) -> Result<Tensor<1>, E> {
        self.forward_with(x, cuts, boundary, |_| Ok(()))
    }

    /// [`forward`](Self::forward) that calls `inside` at the beginning of each stage but the first.
    pub(crate) fn forward_with<E: From<Error>>(
        &self,
        x: Tensor<2>,
        cuts: &[usize],
        boundary: Option<&StageBoundary<'_>>,
        inside: impl Fn(&StageBoundary<'_>) -> Result<(), E>,
    ) -> Result<Tensor<1>, E> {
        let mut x = self.embed.forward(x);
        // A second tensor goes along the stages: the residual of all blocks.
        let mut residual = x.clone();
        for index in 0..=self.blocks.len() {
            if let Some(boundary) = boundary {
                for _ in cuts.iter().filter(|cut| **cut == index) {
                    x = boundary.carry(x, &device());
                    residual = boundary.carry(residual, &device());
                    boundary.arrive()?;
                    inside(boundary)?;
                }
            }
            if let Some(block) = self.blocks.get(index) {
                x = relu(block.linear.forward(block.norm.forward(x)));
                if index % 2 == 1 {
                    x = x + residual.clone();
                }
            }
        }
        let x = x + residual;
        let x = if self.tied { x.matmul(self.embed.weight.val().transpose()) } else { self.head.forward(x) };
        Ok(x.powi_scalar(2).mean())
    }

    /// A copy whose parameters are new leaves with the same values, in `dtype` if one is given.
    pub(crate) fn renewed(&self, dtype: Option<FloatDType>) -> Self {
        struct Renew(Option<FloatDType>);
        impl ModuleMapper for Renew {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                param.map(|tensor| match self.0 {
                    Some(dtype) => tensor.detach().cast(dtype).detach().require_grad(),
                    None => tensor.detach().require_grad(),
                })
            }
        }
        self.clone().map(&mut Renew(dtype))
    }

    /// The gradients by the parameters' numbers.
    pub(crate) fn gradients(&self, gradients: &mut Gradients) -> Found {
        struct Take<'a>(usize, &'a mut Gradients, Found);
        impl ModuleVisitor for Take<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = param.val().grad_remove(self.1) {
                    let length = gradient.shape().num_elements();
                    self.2.insert(self.0, gradient.reshape([length]));
                }
                self.0 += 1;
            }
        }
        let mut take = Take(0, gradients, Found::new());
        self.visit(&mut take);
        take.2
    }
}

/// Gradients by the numbers of the parameters.
pub(crate) type Found = BTreeMap<usize, Tensor<1>>;

pub(crate) fn add(sum: &mut Found, found: Found) {
    for (index, gradient) in found {
        let gradient = match sum.remove(&index) {
            Some(before) => before + gradient,
            None => gradient,
        };
        sum.insert(index, gradient);
    }
}

/// Losses and summed gradients of a batch, to compare bit for bit.
#[derive(Debug, PartialEq)]
pub(crate) struct Numbers {
    pub(crate) losses: Vec<TensorData>,
    pub(crate) gradients: Vec<(usize, TensorData)>,
}

impl Numbers {
    pub(crate) fn new(losses: Vec<Tensor<1>>, sum: Found) -> Self {
        let gradients = sum.into_iter().map(|(index, gradient)| (index, gradient.into_data())).collect();
        Self { losses: losses.into_iter().map(Tensor::into_data).collect(), gradients }
    }
}

pub(crate) fn inputs(micro_batches: usize) -> Vec<Tensor<2>> {
    let input = || Tensor::random([ROWS, WIDTH], Distribution::Normal(0.0, 1.0), &device().inner());
    (0..micro_batches).map(|_| input()).collect()
}

/// A loop over micro-batches without stages.
pub(crate) fn plainly(models: &[Chain], inputs: &[Tensor<2>]) -> Numbers {
    let (mut losses, mut sum) = (vec![], Found::new());
    for (model, input) in models.iter().zip(inputs) {
        let loss = model.forward::<Error>(input.clone().autodiff(), &[], None).unwrap();
        losses.push(loss.clone().inner());
        add(&mut sum, model.gradients(&mut loss.backward()));
    }
    Numbers::new(losses, sum)
}

/// Adds the gradients of the stages of each micro-batch, then those of the micro-batches.
pub(crate) struct Sums(Vec<Mutex<Found>>);

impl Sums {
    pub(crate) fn new(micro_batches: usize) -> Self {
        Self((0..micro_batches).map(|_| Mutex::default()).collect())
    }

    pub(crate) fn take(&self, model: &Chain, micro_batch: usize, mut gradients: Gradients) {
        add(&mut self.0[micro_batch].lock().unwrap(), model.gradients(&mut gradients));
    }

    pub(crate) fn sum(self) -> Found {
        let mut sum = Found::new();
        self.0.into_iter().for_each(|found| add(&mut sum, found.into_inner().unwrap()));
        sum
    }
}

/// Runs a batch through stages that end before each block of `cuts`. `models[i]` is the model of micro-batch `i`.
pub(crate) fn in_stages(
    pipeline: &Pipeline,
    models: &[Chain],
    inputs: &[Tensor<2>],
    cuts: &[usize],
) -> Result<(Numbers, PipelineOutput), Stopped<Error>> {
    let sums = Sums::new(inputs.len());
    let ran = pipeline.run(
        |micro_batch, boundary| {
            models[micro_batch].forward(inputs[micro_batch].clone().autodiff(), cuts, Some(boundary))
        },
        |_, micro_batch, gradients| {
            sums.take(&models[micro_batch], micro_batch, gradients);
            Ok(())
        },
    )?;
    Ok((Numbers::new(ran.losses.clone(), sums.sum()), ran))
}
