//! One operation of burn's graph: the tensors that it saves, and the function that computes gradients from them.

use std::fmt::Debug;

use burn::backend::Autodiff;
use burn::backend::Backend;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;

/// Computes the gradients of the inputs from the saved tensors and the gradient of the output. The flags say which inputs need a
/// gradient. A gradient that is not needed may be `None`.
pub type Gradient<B, S, const N: usize> = fn(S, FloatTensor<B>, [bool; N]) -> [Option<FloatTensor<B>>; N];

/// An operation with `N` inputs that saves an `S`.
struct Node<B: Backend, S, const N: usize> {
    name: &'static str,
    gradient: Gradient<B, S, N>,
}

impl<B: Backend, S, const N: usize> Debug for Node<B, S, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl<B: Backend, S: Clone + Send + Debug + 'static, const N: usize> Backward<B, N> for Node<B, S, N> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (parent, gradient) in ops.parents.iter().zip((self.gradient)(ops.state, gradient, wanted)) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Computes the output and adds the operation to the graph of its inputs. `forward` is told whether an input needs a gradient. If so, it
/// also returns what the backward pass needs.
pub fn record<B: Backend, C: CheckpointStrategy, S: Clone + Send + Debug + 'static, const N: usize>(
    name: &'static str,
    inputs: [NodeGuard; N],
    forward: impl FnOnce(bool) -> (FloatTensor<B>, Option<S>),
    gradient: Gradient<B, S, N>,
) -> FloatTensor<Autodiff<B, C>> {
    match (Node::<B, S, N> { name, gradient }).prepare::<C>(inputs).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => match forward(true) {
            (output, Some(saved)) => prepared.finish(saved, output),
            (_, None) => unreachable!("a tracked operation saves what its backward pass needs"),
        },
        OpsKind::UnTracked(prepared) => prepared.finish(forward(false).0),
    }
}

/// An operation with one input and the settings `S` that costs less to compute again than to keep. With burn's balanced checkpointing its
/// output is computed again, and so is its input if possible.
pub struct Light<B: Backend, S> {
    /// Its name in the graph.
    pub name: &'static str,
    /// Computes the output.
    pub forward: fn(FloatTensor<B>, S) -> FloatTensor<B>,
    /// Computes the gradient of the input from the input and the gradient of the output.
    pub gradient: fn(FloatTensor<B>, FloatTensor<B>, S) -> FloatTensor<B>,
    /// The settings, which both functions get.
    pub settings: S,
}

impl<B: Backend, S> Debug for Light<B, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl<B: Backend, S: Clone + Send + 'static> Backward<B, 1> for Light<B, S> {
    type State = NodeId;

    fn backward(self, ops: Ops<NodeId, 1>, gradients: &mut Gradients, checkpointer: &mut Checkpointer) {
        let input = checkpointer.retrieve_node_output(ops.state);
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| (self.gradient)(input, gradient, self.settings));
    }
}

/// Computes the output of a [`Light`] operation again.
struct Again<B: Backend, S> {
    input: NodeId,
    forward: fn(FloatTensor<B>, S) -> FloatTensor<B>,
    settings: S,
}

impl<B: Backend, S> Debug for Again<B, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("again")
    }
}

impl<B: Backend, S: Clone + Send + 'static> RetroForward for Again<B, S> {
    fn forward(&self, states: &mut BackwardStates, node: NodeId) {
        let input = states.get_state::<FloatTensor<B>>(&self.input);
        states.save(node, (self.forward)(input, self.settings.clone()));
    }
}

/// Computes the output of a [`Light`] operation and adds it to the graph of its input.
pub fn record_light<B: Backend, C: CheckpointStrategy, S: Clone + Send + 'static>(
    operation: Light<B, S>,
    x: FloatTensor<Autodiff<B, C>>,
) -> FloatTensor<Autodiff<B, C>> {
    let (forward, settings) = (operation.forward, operation.settings.clone());
    let again = Again::<B, S> { input: x.id(), forward, settings: settings.clone() };
    match operation.prepare::<C>([x.node()]).memory_bound().retro_forward(again).parents([&x]).stateful() {
        OpsKind::Tracked(mut prepared) => {
            let input = prepared.checkpoint(&x);
            prepared.finish(input, forward(x.into_primitive(), settings))
        }
        OpsKind::UnTracked(prepared) => prepared.finish(forward(x.into_primitive(), settings)),
    }
}
