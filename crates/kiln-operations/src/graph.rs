//! The nodes of burn's autodiff graph that operations become.

use std::fmt::Debug;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, TensorMetadata};
use burn::tensor::Shape;

use crate::operation::{Computed, InOrder, KernelBackend, LightOperation, Onto, Operation};
use crate::sinks::{offered, taken_sum};
use crate::sum_pass::{Place, Taken, adds_in_order, put, reads, settle, take};

/// The most inputs of an operation. burn's nodes have a fixed number of them: others are inputs without a gradient.
const INPUTS: usize = 36;

/// An operation in the graph.
struct Node<O> {
    operation: O,
    /// Its inputs.
    inputs: usize,
    /// Inputs with the sums that the forward pass added to.
    summed: Vec<(usize, Taken)>,
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
        let wanted = &wanted[..self.inputs];
        let ids = ops.parents.each_ref().map(|parent| parent.as_ref().map(|parent| parent.id));
        if !(B::ADDS_IN_ORDER && adds_in_order()) {
            let made = self.operation.gradient::<B>(ops.state, gradient, wanted);
            return hand_out::<B>(&ids, made, gradients);
        }
        if !self.summed.is_empty() {
            let factor = O::factor::<B>(&ops.state, &gradient);
            self.summed.iter().for_each(|(_, taken)| settle::<B>(taken.place, &factor));
        }
        let device = gradient.device();
        let (taken, sums) = match self.operation.in_order() {
            InOrder::Backward(inputs) => sums_of::<B, O>(&ids[..self.inputs], inputs),
            _ => (vec![], vec![Onto::Apart; self.inputs]),
        };
        let mut made = self.operation.gradient_in_order::<B>(ops.state, gradient, wanted, sums);
        for (input, taken) in &taken {
            if let Some(sum) = made.get_mut(*input).and_then(Option::take) {
                match taken.place {
                    Place::Leaf(leaf) => hand_out::<B>(&[Some(leaf)], vec![Some(sum)], gradients),
                    place => put::<B>(place, sum, false),
                }
            }
        }
        // What reads a parameter waits for a gradient.
        for (input, taken) in taken.iter().chain(&self.summed) {
            if let Some(dtype) = taken.read {
                made.resize_with(made.len().max(input + 1), || None);
                made[*input] = Some(B::float_zeros(Shape::new([1]), &device, dtype.into()));
            }
        }
        hand_out::<B>(&ids, made, gradients);
    }
}

/// Hands gradients to burn's container, or to the sinks of their leaves.
fn hand_out<B: KernelBackend>(
    parents: &[Option<NodeId>],
    made: Vec<Option<FloatTensor<B>>>,
    gradients: &mut Gradients,
) {
    for (parent, gradient) in parents.iter().zip(made) {
        if let (Some(parent), Some(gradient)) = (*parent, gradient)
            && let Some(gradient) = offered::<B>(parent, gradient)
        {
            gradients.register::<B>(parent, gradient);
        }
    }
}

/// The sum of each input.
type Sums<B> = Vec<Onto<FloatTensor<B>>>;

/// The places of the running sums of these inputs, and the sums that exist.
fn sums_of<B: KernelBackend, O: Operation>(
    nodes: &[Option<NodeId>],
    inputs: &[usize],
) -> (Vec<(usize, Taken)>, Sums<B>) {
    let (mut taken, mut sums) = (vec![], vec![Onto::Apart; nodes.len()]);
    for &input in inputs {
        if let Some(node) = nodes.get(input).copied().flatten()
            && let Some((place, sum)) = place_of::<B>(node, O::NAME)
        {
            taken.push((input, place));
            sums[input] = sum.map_or(Onto::Begin, Onto::Sum);
        }
    }
    (taken, sums)
}

/// The place of the running sum of a node, and the sum if there is one. Sinks have those of their leaves.
fn place_of<B: KernelBackend>(node: NodeId, operation: &'static str) -> Option<(Taken, Option<FloatTensor<B>>)> {
    match take::<B>(node, operation) {
        Some((taken @ Taken { place: Place::Leaf(leaf), .. }, _)) => Some((taken, taken_sum::<B>(leaf).flatten())),
        None => taken_sum::<B>(node).map(|sum| (Taken { place: Place::Leaf(node), read: None }, sum)),
        taken => taken,
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
    let in_order = B::ADDS_IN_ORDER && adds_in_order();
    let (summed, sums) = match operation.in_order() {
        InOrder::Forward(inputs) if in_order => {
            let ids: Vec<_> = nodes.iter().map(|node| node.as_ref().map(NodeGuard::id)).collect();
            let (mut taken, mut sums) = sums_of::<B, O>(&ids, inputs);
            // The gradient of a leaf without sums is known in the backward pass.
            for (input, _) in taken.extract_if(.., |(_, taken)| matches!(taken.place, Place::Leaf(_))) {
                sums[input] = Onto::Apart;
            }
            (taken, sums)
        }
        _ => (vec![], vec![Onto::Apart; count]),
    };
    let untracked = without(inputs[0].clone());
    let mut nodes = nodes.into_iter();
    let nodes = [(); INPUTS].map(|()| nodes.next().flatten().unwrap_or_else(|| untracked.node()));
    drop(untracked);
    let (Computed { outputs, saved }, sums) = match in_order {
        true => operation.forward_in_order::<B>(inputs, &wanted, sums),
        false => (operation.forward::<B>(inputs, &wanted), vec![]),
    };
    for ((_, taken), sum) in summed.iter().zip(sums.into_iter().flatten()) {
        put::<B>(taken.place, sum, true);
    }
    let leaf = nodes[0].id();
    let saved = saved.unwrap_or_else(|| unreachable!("{} saves what its backward pass needs", O::NAME));
    let mut outputs = outputs.into_iter();
    let output = outputs.next().unwrap_or_else(|| unreachable!("{} has an output", O::NAME));
    let node = Node { operation, inputs: count, summed };
    let output = match Backward::<B, INPUTS>::prepare::<C>(node, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(saved, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    if O::READS_PARAMETER && in_order {
        reads(output.id(), leaf, output.dtype());
    }
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
