//! The part of a micro-batch that a stage keeps between its forward and its backward pass.

use std::any::Any;

use burn::backend::autodiff::NodeId;
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
    /// The output of the previous stage that it came from, and the device that it was sent to.
    from: (NodeId, Device),
    leaf: Node,
    /// The leaf as a `Tensor<D>`.
    tensor: Box<dyn Any + Send>,
    take: Take,
}

/// Takes the gradient of an input out of the gradients of its stage, and makes it an injection for the output that the input came from.
type Take = Box<dyn FnOnce(&mut Gradients) -> Option<Injection> + Send>;

impl Part {
    /// Sends a tracked tensor from `self` to the part of the next stage on `device`. Returns the leaf to go on with. A tensor that is sent
    /// twice arrives as one leaf, so that its gradient has its terms in the order of a plain backward pass.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub(super) fn send<const D: usize>(
        &mut self,
        next: &mut Self,
        tensor: Tensor<D>,
        device: &Device,
    ) -> Result<Tensor<D>, Error> {
        let (output, inject) = Node::of(&tensor)?;
        let (id, source, device) = (output.id(), tensor.device().inner(), device.clone().inner());
        let sent = next.inputs.iter().find(|input| input.from.0 == id && input.from.1 == device);
        if let Some(leaf) = sent.and_then(|input| input.tensor.downcast_ref::<Tensor<D>>()) {
            return Ok(leaf.clone());
        }
        let strategy = tensor.gradient_checkpointing_strategy().unwrap_or_default();
        let moved = tensor.without_autodiff().to_device(&device);
        let leaf = moved.autodiff().with_gradient_checkpointing_strategy(strategy).require_grad();
        let (node, _) = Node::of(&leaf)?;
        let held = leaf.clone();
        let take = move |gradients: &mut Gradients| Some(inject(id, held.grad_remove(gradients)?.to_device(&source)));
        self.outputs.push(output);
        let (tensor, take) = (Box::new(leaf.clone()), Box::new(take));
        next.inputs.push(Input { from: (id, device), leaf: node, tensor, take });
        Ok(leaf)
    }

    /// Runs the backward pass; `run` runs it from its root. Returns the gradients of all leaves of this part but its inputs, and those of the inputs for the stage
    /// before. `None` when no output has a gradient.
    pub(super) fn backward(self, run: &dyn Fn(Tensor<1>) -> Gradients) -> Option<(Gradients, Vec<Option<Injection>>)> {
        let mut gradients = match self.loss {
            Some(loss) => run(loss),
            None => {
                let (mut used, mut given) = (vec![], self.given.into_iter());
                let mut unused = vec![];
                for output in self.outputs {
                    match given.next().flatten() {
                        Some(gradient) => used.push((output, gradient)),
                        None => unused.push(output),
                    }
                }
                let gradients = Node::backward(used, run);
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
