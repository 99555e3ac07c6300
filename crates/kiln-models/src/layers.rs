//! The layers that the models are made of: on burn's own operations with a hook at their input, or on kiln-layers'.

use std::sync::OnceLock;

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, Initializer, LayerNorm, Linear, LinearConfig, PaddingConfig2d, RmsNorm,
};
use burn::tensor::activation::{hard_swish, log_softmax, relu};
use burn::tensor::{Device, Int, Tensor};
use kiln_layers::{LinearCrossEntropy, NormActivation, conv2d_batch_norm_activated};

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
fn hooked<const D: usize, const W: usize>(weight: &Param<Tensor<W>>, x: Tensor<D>) -> Tensor<D> {
    match HOOK.get().and_then(|hook| hook(&|| drop(weight.val()))) {
        Some(map) => {
            let shape = x.shape();
            let elements = shape.num_elements();
            map(x.reshape([elements])).reshape(shape)
        }
        None => x,
    }
}

/// A convolution on burn's operations.
pub(crate) fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    layer.forward(hooked(&layer.weight, x))
}

/// A linear layer on burn's operations.
pub(crate) fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    layer.forward(hooked(&layer.weight, x))
}

/// A layer norm on burn's operations, in the dtype of its own parameters. The result has the dtype of `x`. A norm with f32 parameters thus
/// computes in f32 between layers that compute in 16 bits.
pub(crate) fn layer_norm<const D: usize>(norm: &LayerNorm, x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    norm.forward(x.cast(norm.gamma.val().dtype())).cast(dtype)
}

/// An RMS norm on burn's operations, in the dtype of its own parameters. The result has the dtype of `x`.
pub(crate) fn rms_norm<const D: usize>(norm: &RmsNorm, x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    norm.forward(x.cast(norm.gamma.val().dtype())).cast(dtype)
}

/// A batch norm on burn's operations, in the dtype of its own parameters. The result has the dtype of `x`.
pub(crate) fn batch_norm<const D: usize>(norm: &BatchNorm, x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    norm.forward(x.cast(norm.gamma.val().dtype())).cast(dtype)
}

/// Whether kiln-layers' operations are wanted, and can compute on the device and in the dtype of `x`.
pub(crate) fn usable<const D: usize>(lean: bool, x: &Tensor<D>) -> bool {
    lean && kiln_layers::takes(x)
}

/// The tensor on a device, and itself if it is there.
pub(crate) fn on_device(tensor: Tensor<2>, device: &Device) -> Tensor<2> {
    if tensor.device() == *device { tensor } else { tensor.to_device(device) }
}

/// Drops values, where there is autodiff.
pub(crate) fn dropped<const D: usize>(layer: &Dropout, lean: bool, x: Tensor<D>) -> Tensor<D> {
    if usable(lean, &x) { output(kiln_layers::dropout_layer(layer, x)) } else { layer.forward(x) }
}

/// Unwraps the output of an operation of kiln-layers. The model is built so that its inputs fit together.
///
/// # Panics
/// When they do not, because a caller gave a block an input of another width, with the message of kiln-layers. burn's own layers panic
/// as well.
pub(crate) fn output<T>(result: Result<T, kiln_layers::Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The input of a residual branch and its output, added by kiln-layers' operation where it is usable.
pub(crate) fn residual<const D: usize>(lean: bool, x: Tensor<D>, branch: Tensor<D>) -> Tensor<D> {
    if usable(lean, &x) { output(kiln_layers::residual(x, branch)) } else { x + branch }
}

/// The target of a token that is not learned, as in transformers: it adds nothing to a loss, and the mean is over the other tokens.
pub const NOT_LEARNED: i64 = -100;

/// The loss of an output layer over its tokens, without those that are not learned if there may be such.
pub(crate) fn token_loss(all: bool) -> LinearCrossEntropy {
    let loss = LinearCrossEntropy::new();
    if all { loss } else { loss.with_ignore_index(NOT_LEARNED) }
}

/// The [loss](token_loss) of logits `[rows, V]`, by burn's own operations.
pub(crate) fn loss_of_logits(all: bool, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    if all {
        return CrossEntropyLossConfig::new().init(&targets.device()).forward(logits, targets);
    }
    let [rows, _] = logits.dims();
    let counts = targets.clone().not_equal_elem(NOT_LEARNED).float().cast(logits.dtype());
    // The class of a token that does not count is any.
    let picked = log_softmax(logits, 1).gather(1, targets.clamp_min(0).reshape([rows, 1])).reshape([rows]);
    (picked * counts.clone()).sum().neg() / counts.sum()
}

/// He-normal by fan-out (He et al. 2015b), as torchvision starts most of its networks.
pub(crate) fn he_normal() -> Initializer {
    Initializer::KaimingNormal { gain: f64::sqrt(2.0), fan_out_only: true }
}

/// torch's own default for convolutions: uniform within 1 / sqrt(fan-in).
pub(crate) fn torch_uniform() -> Initializer {
    Initializer::KaimingUniform { gain: 1.0 / f64::sqrt(3.0), fan_out_only: false }
}

/// The deviation of the initial weights of decoders: `initializer_range` of GPT-2 and Llama.
pub(crate) const STD: f64 = 0.02;

/// Numbers from N(0, std).
pub(crate) const fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// A linear layer with weights from N(0, std) and a bias of zeros.
pub(crate) fn normal_linear(from: usize, to: usize, std: f64, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(from, to).with_initializer(normal(std)).init(device);
    layer.bias = Some(Initializer::Zeros.init([to], device));
    layer
}

/// The max-pool of 3x3 pixels and stride 2 after the first convolution.
pub(crate) fn halving_pool() -> MaxPool2d {
    let config = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]);
    config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init()
}

/// The shape of a square convolution that is padded to keep the size at stride 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    /// Channels in and out.
    pub(crate) channels: [usize; 2],
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    /// Equals the number of channels for a depthwise convolution.
    pub(crate) groups: usize,
}

impl ConvShape {
    pub(crate) fn new(channels: [usize; 2], kernel: usize, stride: usize) -> Self {
        Self { channels, kernel, stride, groups: 1 }
    }

    /// A 1x1 convolution.
    pub(crate) fn pointwise(from: usize, to: usize) -> Self {
        Self::new([from, to], 1, 1)
    }

    /// A depthwise convolution: each channel by itself.
    pub(crate) fn depthwise(channels: usize, kernel: usize, stride: usize) -> Self {
        Self { groups: channels, ..Self::new([channels, channels], kernel, stride) }
    }

    /// The convolution, without a bias.
    pub(crate) fn init(self, weights: &Initializer, device: &Device) -> Conv2d {
        let Self { channels, kernel, stride, groups } = self;
        let pad = kernel / 2;
        Conv2dConfig::new(channels, [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
            .with_groups(groups)
            .with_bias(false)
            .with_initializer(weights.clone())
            .init(device)
    }
}

/// A convolution without a bias, and the batch norm after it.
#[derive(Module, Debug)]
pub(crate) struct ConvNorm {
    pub(crate) conv: Conv2d,
    pub(crate) norm: BatchNorm,
}

impl ConvNorm {
    pub(crate) fn new(shape: ConvShape, weights: &Initializer, device: &Device) -> Self {
        Self { conv: shape.init(weights, device), norm: BatchNormConfig::new(shape.channels[1]).init(device) }
    }

    /// The convolution, with the number of groups that its weight has. A convolution with groups is depthwise. Pruning channels leaves
    /// fewer groups than it was built with, since the number of groups is not a parameter.
    pub(crate) fn conv(&self) -> Conv2d {
        let mut conv = self.conv.clone();
        if conv.groups > 1 {
            conv.groups = conv.weight.lazy_shape()[0];
        }
        conv
    }

    /// Computes it with burn's own operations.
    pub(crate) fn stock(&self, x: Tensor<4>, activation: NormActivation) -> Tensor<4> {
        let y = batch_norm(&self.norm, conv2d(&self.conv(), x));
        match activation {
            NormActivation::Relu => relu(y),
            NormActivation::Relu6 => relu(y).clamp_max(6.0),
            NormActivation::HardSwish => hard_swish(y),
            _ => y,
        }
    }
}

/// The paths of a [`ConvNorm`]'s layers in this crate, below `ours`, and in torch's files, where they have the numbers `first` and
/// `first + 1` in the sequence `theirs`.
pub(crate) fn conv_norm_names(ours: &str, theirs: &str, first: usize) -> [(String, String); 2] {
    [("conv", first), ("norm", first + 1)].map(|(layer, at)| (format!("{ours}.{layer}"), format!("{theirs}.{at}")))
}

/// A convolution, batch norm, an activation, and perhaps a max-pool: the first block of a network, which reads images, or its last, which
/// makes the features of the classifier.
#[derive(Module, Debug)]
pub struct ConvNormActivation {
    layers: ConvNorm,
    #[module(skip)]
    activation: NormActivation,
    maxpool: Option<MaxPool2d>,
    lean: bool,
}

impl ConvNormActivation {
    /// A handle to the layers' parameters and running statistics.
    pub(crate) fn of(layers: &ConvNorm, activation: NormActivation, maxpool: Option<&MaxPool2d>, lean: bool) -> Self {
        Self { layers: layers.clone(), activation, maxpool: maxpool.cloned(), lean }
    }

    /// `[B, C, H, W]` to `[B, C', H', W']`, in the dtype of the weights.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let ConvNorm { conv, norm } = &self.layers;
        let x = x.cast(conv.weight.val().dtype());
        let lean = usable(self.lean, &x);
        let x = match lean {
            true => output(conv2d_batch_norm_activated(conv, norm, self.activation, x)),
            false => self.layers.stock(x, self.activation),
        };
        match &self.maxpool {
            Some(pool) => max_pool2d(pool, lean, x),
            None => x,
        }
    }
}

/// A max-pool, on kiln-layers' operations if `lean`.
pub(crate) fn max_pool2d(pool: &MaxPool2d, lean: bool, x: Tensor<4>) -> Tensor<4> {
    if lean { output(kiln_layers::max_pool2d(pool, x)) } else { pool.forward(x) }
}
