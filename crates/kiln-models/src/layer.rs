//! burn's convolutions and linear layers, with a hook that can change their input.

use std::sync::OnceLock;

use burn::module::Param;
use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;

/// A function that changes the elements of a layer's input, given as one row. It must keep their number.
pub type InputMap = Box<dyn FnOnce(Tensor<1>) -> Tensor<1>>;

/// A function that returns the change to the input of a layer, or `None` for no change. It gets a function that reads the layer's weight,
/// by which it tells layers apart.
pub type InputHook = fn(read_weight: &dyn Fn()) -> Option<InputMap>;

static HOOK: OnceLock<InputHook> = OnceLock::new();

/// Registers `hook`, which is called at every convolution and linear layer that runs on burn's own operations. It is for a library that
/// simulates layers with integer inputs: a parameter's reparameterization can change the weight that a layer reads, but not the layer's
/// input.
///
/// Layers on kiln-layers' operations do not call it, because the inputs of most of their convolutions never exist as tensors. Build the
/// model with `lean` off.
///
/// Returns whether `hook` is in effect. A program has one hook: the first that is registered.
pub fn on_layer_input(hook: InputHook) -> bool {
    *HOOK.get_or_init(|| hook) as usize == hook as usize
}

/// `x` after the change that the hook makes for the layer with this weight.
fn through<const D: usize, const W: usize>(weight: &Param<Tensor<W>>, x: Tensor<D>) -> Tensor<D> {
    match HOOK.get().and_then(|hook| hook(&|| drop(weight.val()))) {
        Some(map) => {
            let shape = x.shape();
            let elements = shape.num_elements();
            map(x.reshape([elements])).reshape(shape)
        }
        None => x,
    }
}

/// A convolution.
pub(crate) fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    layer.forward(through(&layer.weight, x))
}

/// A linear layer.
pub(crate) fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    layer.forward(through(&layer.weight, x))
}
