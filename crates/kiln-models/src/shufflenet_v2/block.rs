//! The blocks of a ShuffleNetV2 as a chain: the stem, blocks that shuffle channels, and the last convolution.

use burn::module::Module;
use burn::nn::pool::MaxPool2d;
use burn::tensor::{Device, Tensor};
use kiln_layers::NormActivation::{None as Linear, Relu};
use kiln_layers::{
    batch_norm_activated_conv2d, batch_norm_relu, batch_norm_relu_conv2d, conv2d, conv2d_batch_norm_relu, max_pool2d,
};

use crate::conv_norm::{ConvNorm, ConvShape, torch_uniform};
use crate::lean::{output, usable};

/// One block of a [`ShuffleNetV2`](crate::ShuffleNetV2) as a chain. Each block reads the output of the block before it.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum ShuffleNetV2Block {
    /// A convolution, batch norm, ReLU, and at the beginning a max-pool.
    Conv(ConvRelu),
    /// From features to features.
    Shuffle(ShuffleBlock),
}

/// A convolution, batch norm and ReLU, and perhaps a max-pool.
#[derive(Module, Debug)]
pub struct ConvRelu {
    pub(super) layers: ConvNorm,
    pub(super) maxpool: Option<MaxPool2d>,
    pub(super) lean: bool,
}

/// Divides the channels into two halves: one goes through three convolutions, the other stays as it is. In a block that halves the image,
/// both halves are made of all channels. The channels of the halves alternate in the output.
#[derive(Module, Debug)]
pub struct ShuffleBlock {
    /// The half with a single 3x3 convolution, in a block that halves the image.
    pub(super) short: Option<Short>,
    pub(super) long: Long,
    lean: bool,
}

/// A 3x3 convolution of each channel by itself, and a 1x1 convolution.
#[derive(Module, Debug)]
pub(super) struct Short {
    depthwise: ConvNorm,
    pointwise: ConvNorm,
}

/// A 1x1 convolution, a 3x3 convolution of each channel by itself, and a 1x1 convolution.
#[derive(Module, Debug)]
pub(super) struct Long {
    first: ConvNorm,
    depthwise: ConvNorm,
    last: ConvNorm,
}

impl ShuffleNetV2Block {
    /// `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Conv(block) => block.forward(x),
            Self::Shuffle(block) => block.forward(x),
        }
    }
}

impl ConvRelu {
    pub(super) fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let ConvNorm { conv, norm } = &self.layers;
        let x = x.cast(conv.weight.val().dtype());
        let lean = usable(self.lean, &x);
        let x = match lean {
            true => output(conv2d_batch_norm_relu(conv, norm, x)),
            false => self.layers.stock(x, Relu),
        };
        match &self.maxpool {
            Some(pool) if lean => output(max_pool2d(pool, x)),
            Some(pool) => pool.forward(x),
            None => x,
        }
    }
}

impl ShuffleBlock {
    /// `to` is an even number of channels. With a stride of 1, `from` and `to` are equal.
    pub(super) fn new([from, to]: [usize; 2], stride: usize, lean: bool, device: &Device) -> Self {
        let half = to / 2;
        let layers = |shape| ConvNorm::new(shape, &torch_uniform(), device);
        Self {
            short: (stride != 1).then(|| Short {
                depthwise: layers(ConvShape::depthwise(from, stride)),
                pointwise: layers(ConvShape::pointwise(from, half)),
            }),
            long: Long {
                first: layers(ConvShape::pointwise(if stride == 1 { half } else { from }, half)),
                depthwise: layers(ConvShape::depthwise(half, stride)),
                last: layers(ConvShape::pointwise(half, half)),
            },
            lean,
        }
    }

    /// `[B, C, H, W]` to `[B, C', H / stride, W / stride]`, rounded up.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let lean = usable(self.lean, &x);
        let [first, second] = match &self.short {
            Some(short) => [short.forward(x.clone(), lean), self.long.forward(x, lean)],
            None => {
                let half = x.dims()[1] / 2;
                let second = self.long.forward(x.clone().narrow(1, half, half), lean);
                [x.narrow(1, 0, half), second]
            }
        };
        // [B, C, 2, H, W]: channels of the two halves alternate.
        let [b, c, h, w] = first.dims();
        Tensor::stack::<5>(vec![first, second], 2).reshape([b, 2 * c, h, w])
    }
}

impl Short {
    fn forward(&self, x: Tensor<4>, lean: bool) -> Tensor<4> {
        if !lean {
            return self.pointwise.stock(self.depthwise.stock(x, Linear), Relu);
        }
        let y = output(conv2d(&self.depthwise.conv(), x));
        let y = output(batch_norm_activated_conv2d(&self.depthwise.norm, Linear, &self.pointwise.conv, y));
        output(batch_norm_relu(&self.pointwise.norm, y))
    }
}

impl Long {
    fn forward(&self, x: Tensor<4>, lean: bool) -> Tensor<4> {
        if !lean {
            return self.last.stock(self.depthwise.stock(self.first.stock(x, Relu), Linear), Relu);
        }
        let y = output(conv2d(&self.first.conv, x));
        let y = output(batch_norm_relu_conv2d(&self.first.norm, &self.depthwise.conv(), y));
        let y = output(batch_norm_activated_conv2d(&self.depthwise.norm, Linear, &self.last.conv, y));
        output(batch_norm_relu(&self.last.norm, y))
    }
}
