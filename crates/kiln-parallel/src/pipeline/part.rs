//! What a stage keeps of a micro-batch between its forward and its backward pass.

use burn::tensor::{Device, Gradients, Tensor};

use super::graph::{Injection, Node};
use crate::error::Error;

/// The part of a micro-batch's forward pass that one stage has run: a graph from `inputs` to `outputs` or to the loss.
#[derive(Default)]
pub(super) struct Part {
    /// The tensors that came from the stage before, as leaves.
    pub(super) inputs: Vec<Input>,
    /// The tensors that went to the next stage, in the order of that stage's inputs.
    pub(super) outputs: Vec<Node>,
    /// The loss, in the last stage.
    pub(super) loss: Option<Tensor<1>>,
    /// The gradients of the outputs, after the next stage's backward pass.
    pub(super) given: Vec<Option<Injection>>,
}

/// A tensor that came from the stage before: a leaf.
pub(super) struct Input {
    leaf: Node,
    take: Box<dyn FnOnce(&mut Gradients) -> Option<Injection> + Send>,
}

/// A tracked tensor that goes to `device`: the end of one graph, the input of the next one, and the tensor to go on with.
///
/// # Errors
/// [`Error::Backend`].
pub(super) fn cross<const D: usize>(tensor: Tensor<D>, device: &Device) -> Result<(Node, Input, Tensor<D>), Error> {
    let (output, inject) = Node::of(&tensor)?;
    let (id, source) = (output.id(), tensor.device().inner());
    let strategy = tensor.gradient_checkpointing_strategy().unwrap_or_default();
    let moved = tensor.without_autodiff().to_device(&device.clone().inner());
    let leaf = moved.autodiff().with_gradient_checkpointing_strategy(strategy).require_grad();
    let (node, _) = Node::of(&leaf)?;
    let held = leaf.clone();
    let take = move |gradients: &mut Gradients| inject(id, held.grad_remove(gradients)?.to_device(&source));
    Ok((output, Input { leaf: node, take: Box::new(take) }, leaf))
}

impl Part {
    /// Runs the backward pass. Returns the gradients of all leaves of this part but its inputs, and those of the inputs for the stage
    /// before. `None` when no output has a gradient.
    pub(super) fn backward(self) -> Option<(Gradients, Vec<Option<Injection>>)> {
        let mut gradients = match self.loss {
            Some(loss) => loss.backward(),
            None => {
                let (mut used, mut given) = (vec![], self.given.into_iter());
                let mut unused = vec![];
                for output in self.outputs {
                    match given.next().flatten() {
                        Some(gradient) => used.push((output, gradient)),
                        None => unused.push(output),
                    }
                }
                let gradients = Node::backward(used);
                unused.into_iter().for_each(Node::forget);
                gradients?
            }
        };
        let given = self.inputs.into_iter().map(|input| (input.take)(&mut gradients)).collect();
        Some((gradients, given))
    }

    /// Makes burn release the graph without a backward pass.
    pub(super) fn forget(self) {
        let loss = self.loss.and_then(|loss| Node::of(&loss).ok()).map(|(node, _)| node);
        let leaves: Vec<Node> = self.inputs.into_iter().map(|input| input.leaf).collect();
        self.outputs.into_iter().chain(loss).chain(leaves).for_each(Node::forget);
    }
}
