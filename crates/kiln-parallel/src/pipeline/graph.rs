//! The operations that stages add to burn's autodiff graphs: one that starts a backward pass with gradients that are given, and one that
//! makes burn release a graph.
//!
//! ```text
//! output ─┐
//! output ─┼─ join … ── inject
//! output ─┘
//! ```
//!
//! The injection depends on all outputs of a stage through the joins, which pass no gradient on. It therefore comes first in the backward
//! pass. It registers the gradients of all outputs as they are. Its value is a tensor of one zero: it computes nothing and holds no
//! output, so that the memory of an output on the stage's device is free as soon as the stage does not need it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "cube")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing};
use burn::backend::autodiff::grads::Gradients as Registry;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, DispatchKindConversion, DispatchTensor, DispatchTensorKind,
    GradientCheckpointingStrategy as Strategy,
};
use burn::tensor::{Device, Gradients, Tensor};

use crate::error::Error;

/// Registers a gradient in a backward pass.
pub(super) type Injection = Box<dyn FnOnce(&mut Registry) + Send>;

/// A backward pass from nodes with their gradients.
type BackwardPass = fn(Vec<(NodeGuard, Injection)>, &Device, &dyn Fn(Tensor<1>) -> Gradients) -> Option<Gradients>;

/// A tracked tensor's place in its graph, of any rank. It keeps the graph, but not the tensor's values.
pub(super) struct Node {
    guard: NodeGuard,
    device: Device,
    backward: BackwardPass,
    forget: fn(NodeGuard, &Device),
}

/// From the gradient of a tensor of rank `D` to its injection.
pub(super) type Inject<const D: usize> = fn(NodeId, Tensor<D>) -> Injection;

impl Node {
    /// The place of a tracked tensor, and how its gradient is injected.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub(super) fn of<const D: usize>(tensor: &Tensor<D>) -> Result<(Self, Inject<D>), Error> {
        let device = tensor.device();
        let elsewhere = || Error::Backend { device: format!("{device:?}") };
        let strategy = tensor.gradient_checkpointing_strategy().ok_or_else(elsewhere)?;
        let DispatchTensorKind::Autodiff(inner) = tensor.clone().into_dispatch().kind else { return Err(elsewhere()) };
        let found = match (*inner, strategy) {
            #[cfg(feature = "flex")]
            (DispatchTensorKind::Flex(_), Strategy::Disabled) => node::<Flex, NoCheckpointing, D>(tensor),
            #[cfg(feature = "flex")]
            (DispatchTensorKind::Flex(_), Strategy::Balanced) => node::<Flex, BalancedCheckpointing, D>(tensor),
            #[cfg(feature = "cube")]
            (DispatchTensorKind::Cube(_), Strategy::Disabled) => node::<Cube, NoCheckpointing, D>(tensor),
            #[cfg(feature = "cube")]
            (DispatchTensorKind::Cube(_), Strategy::Balanced) => node::<Cube, BalancedCheckpointing, D>(tensor),
            _ => None,
        };
        found.ok_or_else(elsewhere)
    }

    pub(super) fn id(&self) -> NodeId {
        self.guard.id()
    }

    /// The backward pass of the graph before `outputs`, each with its gradient. `run` runs it from its root. `None` when there are no outputs.
    pub(super) fn backward(outputs: Vec<(Self, Injection)>, run: &dyn Fn(Tensor<1>) -> Gradients) -> Option<Gradients> {
        let (first, _) = outputs.first()?;
        let (backward, device) = (first.backward, first.device.clone());
        backward(outputs.into_iter().map(|(node, injection)| (node.guard, injection)).collect(), &device, run)
    }

    /// Makes burn release the graph that leads to this node, when no backward pass will begin here. The tensor and everything that was
    /// computed from it must have been dropped.
    ///
    /// burn releases an abandoned graph at the end of the next backward pass in the same graph. This is the smallest such pass: that of
    /// a leaf that has joined the graph.
    pub(super) fn forget(self) {
        (self.forget)(self.guard, &self.device);
    }
}

fn node<B: Backend, C: CheckpointStrategy, const D: usize>(tensor: &Tensor<D>) -> Option<(Node, Inject<D>)>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    let guard = tensor.clone().try_into_primitive::<Autodiff<B, C>>().ok()?.node();
    let node = Node { guard, device: tensor.device().inner(), backward: backward::<B, C>, forget: forget::<B, C> };
    let inject: Inject<D> = |id, gradient| {
        let gradient = primitive::<B, D>(gradient);
        Box::new(move |registry| registry.register::<B>(id, gradient))
    };
    Some((node, inject))
}

fn backward<B: Backend, C: CheckpointStrategy>(
    outputs: Vec<(NodeGuard, Injection)>,
    device: &Device,
    run: &dyn Fn(Tensor<1>) -> Gradients,
) -> Option<Gradients>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    let zero = primitive::<B, 1>(Tensor::zeros([1], device));
    let (guards, injections): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
    let mut guards = guards.into_iter();
    let first = guards.next()?;
    let all = guards.fold(first, |before, guard| join::<B, C>([before, guard], zero.clone()).node());
    let given = Given(Arc::new(Mutex::new(injections)));
    let start = match Backward::<B, 1>::prepare::<C>(Start, [all]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(given, zero),
        OpsKind::UnTracked(prepared) => prepared.finish(zero),
    };
    Some(run(Tensor::<1>::from_primitive::<Autodiff<B, C>>(start)))
}

fn forget<B: Backend, C: CheckpointStrategy>(guard: NodeGuard, device: &Device)
where
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    let zero = primitive::<B, 1>(Tensor::zeros([1], device));
    let leaf = <Autodiff<B, C> as burn::backend::AutodiffBackend>::from_inner(zero.clone());
    let leaf = Tensor::<1>::from_primitive::<Autodiff<B, C>>(leaf).require_grad();
    if let Ok(primitive) = leaf.clone().try_into_primitive::<Autodiff<B, C>>() {
        drop(join::<B, C>([guard, primitive.node()], zero));
    }
    drop(leaf.backward());
}

/// The primitive of a tensor that is on a device of `B`, as gradients are of a tensor of `B`.
fn primitive<B: Backend, const D: usize>(tensor: Tensor<D>) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match tensor.try_into_primitive::<B>() {
        Ok(primitive) => primitive,
        Err(error) => unreachable!("a gradient is on the backend of its tensor: {error:?}"),
    }
}

/// A tensor of one zero that depends on two nodes.
fn join<B: Backend, C: CheckpointStrategy>(nodes: [NodeGuard; 2], zero: FloatTensor<B>) -> FloatTensor<Autodiff<B, C>> {
    Backward::<B, 2>::prepare::<C>(Join, nodes).compute_bound().stateless(zero)
}

/// Makes several nodes ancestors of one. It passes no gradient on.
#[derive(Debug)]
struct Join;

impl<B: Backend> Backward<B, 2> for Join {
    type State = ();

    fn backward(self, _: Ops<(), 2>, _: &mut Registry, _: &mut Checkpointer) {}
}

/// Starts a backward pass with gradients that are given.
#[derive(Debug)]
struct Start;

/// The gradients that a backward pass starts with. burn requires a state to be `Clone` and `Debug`.
#[derive(Clone)]
struct Given(Arc<Mutex<Vec<Injection>>>);

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the gradients of a stage's outputs")
    }
}

impl<B: Backend> Backward<B, 1> for Start {
    type State = Given;

    fn backward(self, ops: Ops<Given, 1>, registry: &mut Registry, _: &mut Checkpointer) {
        let _ = registry.consume::<B>(&ops.node);
        let injections = std::mem::take(&mut *ops.state.0.lock().unwrap_or_else(PoisonError::into_inner));
        for inject in injections {
            inject(registry);
        }
    }
}
