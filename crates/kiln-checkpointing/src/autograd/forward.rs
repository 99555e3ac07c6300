//! The forward pass of a segment: visits its parameters, inputs and outputs.

use std::marker::PhantomData;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::graph::Hub;
use super::tensors::{TensorMap, Tensors};

/// A tensor that needs a gradient, in the graph around the segment.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) node: NodeId,
    /// Whether it is a leaf: no operation before it waits for its gradient.
    pub(crate) leaf: bool,
}

/// The parameters of a module, or the inputs, that need a gradient.
pub(crate) struct Sources<B, C> {
    /// One entry for every float in the order of visiting, tracked or not; a shared parameter is visited twice.
    pub(crate) all: Vec<Option<Source>>,
    pub(crate) guards: Vec<NodeGuard>,
    /// The device of a tensor that is not on the segment's backend.
    pub(crate) elsewhere: Option<String>,
    marker: PhantomData<(B, C)>,
}

impl<B: Backend, C: CheckpointStrategy> Sources<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
{
    fn new() -> Self {
        Self { all: vec![], guards: vec![], elsewhere: None, marker: PhantomData }
    }

    /// The parameters of a module. The guards are that of one parameter, which makes the segment tracked when no input is.
    pub(crate) fn of_module(module: &impl Module) -> Self {
        let mut sources = Self::new();
        module.visit(&mut sources);
        sources.guards.truncate(1);
        sources
    }

    pub(crate) fn of_inputs(inputs: impl Tensors) -> Self {
        let mut sources = Self::new();
        let _ = inputs.map(&mut sources);
        sources
    }

    fn add<const D: usize>(&mut self, tensor: Tensor<D>) {
        let (leaf, device) = (tensor.is_require_grad(), tensor.device());
        let primitive = tensor.is_tracked().then(|| tensor.try_into_primitive::<Autodiff<B, C>>());
        self.all.push(match primitive {
            Some(Ok(primitive)) => {
                self.guards.push(primitive.node());
                Some(Source { node: primitive.id(), leaf })
            }
            Some(Err(_)) => {
                self.elsewhere = Some(format!("{device:?}"));
                None
            }
            None => None,
        });
    }
}

impl<B: Backend, C: CheckpointStrategy> ModuleVisitor for Sources<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
{
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.val());
    }
}

impl<B: Backend, C: CheckpointStrategy> TensorMap for Sources<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
{
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.add(tensor.clone());
        tensor
    }
}

/// Detaches tensors from the graph but leaves them on their autodiff device, which dropout and batch-norm look at.
pub(crate) struct Untracked;

impl TensorMap for Untracked {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match tensor.gradient_checkpointing_strategy() {
            Some(strategy) => tensor.without_autodiff().autodiff().with_gradient_checkpointing_strategy(strategy),
            None => tensor,
        }
    }
}

/// The outputs of a pass.
#[derive(Default)]
pub(crate) struct Outputs {
    pub(crate) tracked: bool,
    pub(crate) described: Vec<String>,
}

impl TensorMap for Outputs {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.tracked |= tensor.is_tracked();
        self.described.push(describe(&tensor));
        tensor
    }
}

/// Shape, dtype and device.
pub(crate) fn describe<const D: usize>(tensor: &Tensor<D>) -> String {
    let sizes: Vec<String> = tensor.dims().iter().map(|size| size.to_string()).collect();
    format!("[{}] {:?} on {:?}", sizes.join(", "), tensor.dtype(), tensor.device())
}

/// Attaches outputs to the hub.
pub(crate) struct Attach<B: Backend, C> {
    hub: Hub<B>,
    slot: usize,
    /// The device of an output that is not on the segment's backend.
    pub(crate) elsewhere: Option<String>,
    marker: PhantomData<C>,
}

impl<B: Backend, C> Attach<B, C> {
    pub(crate) fn new(hub: Hub<B>) -> Self {
        Self { hub, slot: 0, elsewhere: None, marker: PhantomData }
    }
}

impl<B: Backend, C: CheckpointStrategy> TensorMap for Attach<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let slot = self.slot;
        self.slot += 1;
        match tensor.clone().without_autodiff().try_into_primitive::<B>() {
            Ok(primitive) => Tensor::from_primitive::<Autodiff<B, C>>(self.hub.output::<C>(slot, primitive)),
            Err(_) => {
                self.elsewhere = Some(format!("{:?}", tensor.device()));
                tensor
            }
        }
    }
}
