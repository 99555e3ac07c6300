//! The forward pass of a segment: visits its parameters, inputs and outputs.

use std::marker::PhantomData;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor};
use burn::module::{ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::graph::Hub;
use super::tensors::TensorMap;

/// The module's parameters that need a gradient.
pub(crate) struct Parameters<B, C> {
    /// One entry for every float parameter in the order of visiting; a shared parameter is visited twice.
    pub(crate) nodes: Vec<Option<NodeId>>,
    /// One of the parameters: it makes the segment tracked when no input is.
    pub(crate) anchor: Option<NodeGuard>,
    /// The device of a tensor that is not on the segment's backend.
    pub(crate) elsewhere: Option<String>,
    marker: PhantomData<(B, C)>,
}

impl<B, C> Default for Parameters<B, C> {
    fn default() -> Self {
        Self { nodes: vec![], anchor: None, elsewhere: None, marker: PhantomData }
    }
}

impl<B: Backend, C: CheckpointStrategy> ModuleVisitor for Parameters<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
{
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let mut node = None;
        if tensor.is_require_grad() {
            let device = tensor.device();
            match tensor.try_into_primitive::<Autodiff<B, C>>() {
                Ok(primitive) => {
                    node = Some(primitive.id());
                    self.anchor.get_or_insert_with(|| primitive.node());
                }
                Err(_) => self.elsewhere = Some(format!("{device:?}")),
            }
        }
        self.nodes.push(node);
    }
}

/// An input that needs a gradient.
#[derive(Clone, Copy)]
pub(crate) struct InputId {
    pub(crate) node: NodeId,
    /// Whether the input is a leaf: no operation before it waits for its gradient.
    pub(crate) leaf: bool,
}

/// The inputs that need a gradient.
pub(crate) struct Inputs<B, C> {
    /// One entry for every float input in their order, tracked or not.
    pub(crate) ids: Vec<Option<InputId>>,
    pub(crate) guards: Vec<NodeGuard>,
    /// The device of a tensor that is not on the segment's backend.
    pub(crate) elsewhere: Option<String>,
    marker: PhantomData<(B, C)>,
}

impl<B, C> Default for Inputs<B, C> {
    fn default() -> Self {
        Self { ids: vec![], guards: vec![], elsewhere: None, marker: PhantomData }
    }
}

impl<B: Backend, C: CheckpointStrategy> TensorMap for Inputs<B, C>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
{
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let (leaf, tracked) = (tensor.is_require_grad(), tensor.is_tracked());
        let primitive = tracked.then(|| tensor.clone().try_into_primitive::<Autodiff<B, C>>().ok()).flatten();
        if tracked && primitive.is_none() {
            self.elsewhere = Some(format!("{:?}", tensor.device()));
        }
        self.ids.push(primitive.as_ref().map(|primitive| InputId { node: primitive.id(), leaf }));
        self.guards.extend(primitive.map(|primitive| primitive.node()));
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
