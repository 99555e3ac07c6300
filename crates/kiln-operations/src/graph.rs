//! The nodes of burn's autodiff graph that operations become.

use std::fmt::Debug;

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;

use crate::operation::{Computed, KernelBackend, LightOperation, Operation};
use crate::sinks::offered;

/// The most inputs of an operation. burn's nodes have a fixed number of them: others are inputs without a gradient.
const INPUTS: usize = 12;

/// An operation in the graph.
struct Node<O> {
    operation: O,
    /// Its inputs.
    inputs: usize,
}

impl<O: Operation> Debug for Node<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(O::NAME)
    }
}

impl<B: KernelBackend, O: Operation> Backward<B, INPUTS> for Node<O> {
    type State = O::Saved<B>;

    fn backward(self, ops: Ops<O::Saved<B>, INPUTS>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let made = self.operation.gradient::<B>(ops.state, gradient, &wanted[..self.inputs]);
        for (parent, gradient) in ops.parents.iter().zip(made) {
            if let (Some(parent), Some(gradient)) = (parent, gradient)
                && let Some(gradient) = offered::<B>(parent.id, gradient)
            {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Computes the outputs and adds the operation to the graph. `nodes` are those of the inputs that need a gradient.
pub(crate) fn node<B: KernelBackend, C: CheckpointStrategy, O: Operation>(
    operation: O,
    inputs: Vec<FloatTensor<B>>,
    nodes: Vec<Option<NodeGuard>>,
) -> Vec<FloatTensor<Autodiff<B, C>>> {
    let (count, without) = (inputs.len(), FloatTensor::<Autodiff<B, C>>::new);
    assert!((1..=INPUTS).contains(&count), "{count} inputs of {}, expected 1 to {INPUTS}", O::NAME);
    let wanted: Vec<bool> = nodes.iter().map(Option::is_some).collect();
    if !wanted.contains(&true) {
        let outputs = operation.forward::<B>(inputs, &wanted).outputs;
        return outputs.into_iter().map(without).collect();
    }
    let first = inputs[0].clone();
    let mut nodes = nodes.into_iter();
    let nodes = [(); INPUTS].map(|()| nodes.next().flatten().unwrap_or_else(|| without(first.clone()).into_parts().1));
    drop(first);
    let Computed { outputs, saved } = operation.forward::<B>(inputs, &wanted);
    let saved = saved.unwrap_or_else(|| unreachable!("{} saves what its backward pass needs", O::NAME));
    let mut outputs = outputs.into_iter();
    let output = outputs.next().unwrap_or_else(|| unreachable!("{} has an output", O::NAME));
    let node = Node { operation, inputs: count };
    let output = match Backward::<B, INPUTS>::prepare::<C>(node, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(saved, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    [output].into_iter().chain(outputs.map(without)).collect()
}

/// A light operation in the graph.
struct LightNode<O>(O);

impl<O: LightOperation> Debug for LightNode<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(O::NAME)
    }
}

impl<B: KernelBackend, O: LightOperation> Backward<B, 1> for LightNode<O> {
    type State = NodeId;

    fn backward(self, ops: Ops<NodeId, 1>, gradients: &mut Gradients, checkpointer: &mut Checkpointer) {
        let input = checkpointer.retrieve_node_output(ops.state);
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| self.0.gradient::<B>(input, gradient));
    }
}

/// Computes the output of a light operation again.
struct Again<B, O> {
    input: NodeId,
    operation: O,
    backend: std::marker::PhantomData<fn() -> B>,
}

impl<B, O: Debug> Debug for Again<B, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} again", self.operation)
    }
}

impl<B: KernelBackend, O: LightOperation> RetroForward for Again<B, O> {
    fn forward(&self, states: &mut BackwardStates, node: NodeId) {
        let input = states.get_state::<FloatTensor<B>>(&self.input);
        states.save(node, self.operation.forward::<B>(input));
    }
}

/// Computes the output of a light operation and adds it to the graph of its input.
pub(crate) fn light_node<B: KernelBackend, C: CheckpointStrategy, O: LightOperation>(
    operation: O,
    x: FloatTensor<Autodiff<B, C>>,
) -> FloatTensor<Autodiff<B, C>> {
    let again = Again::<B, O> { input: x.id(), operation: operation.clone(), backend: std::marker::PhantomData };
    let node = Backward::<B, 1>::prepare::<C>(LightNode(operation.clone()), [x.node()]);
    match node.memory_bound().retro_forward(again).parents([&x]).stateful() {
        OpsKind::Tracked(mut prepared) => {
            let input = prepared.checkpoint(&x);
            prepared.finish(input, operation.forward::<B>(x.into_primitive()))
        }
        OpsKind::UnTracked(prepared) => prepared.finish(operation.forward::<B>(x.into_primitive())),
    }
}
