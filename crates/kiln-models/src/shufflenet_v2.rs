//! ShuffleNetV2: Ma et al. 2018, as torchvision builds it.

use burn::module::Module;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use kiln_layers::NormActivation::{None as Identity, Relu};
use kiln_layers::{batch_norm_activated_conv2d, batch_norm_relu, batch_norm_relu_conv2d, conv2d};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::{addressable, invalid, positive, reads_images, setters, three, yes};
use crate::layers::{
    self, ConvNorm, ConvNormActivation, ConvShape, conv_norm_names, halving_pool, output, torch_uniform, usable,
};
use crate::resnet::Stem;

/// Number of blocks of each stage.
const BLOCKS: [usize; 3] = [4, 8, 4];
/// Channels of the first convolution.
const FIRST: usize = 24;

const SIZES: [(&str, [usize; 4]); 4] = [
    ("shufflenet_v2_x0_5", [48, 96, 192, 1024]),
    ("shufflenet_v2_x1_0", [116, 232, 464, 1024]),
    ("shufflenet_v2_x1_5", [176, 352, 704, 1024]),
    ("shufflenet_v2_x2_0", [244, 488, 976, 2048]),
];

/// The configuration of a [`ShuffleNetV2`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShuffleNetV2Config {
    /// Channels of the three stages, which are even, and of the last convolution.
    pub widths: [usize; 4],
    /// Number of classes, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 by default.
    #[serde(default = "three")]
    pub channels: usize,
    /// The layers before the first block. For [`Stem::ImageNet`], which is the default, the first convolution has a stride of 2 and a
    /// max-pool after it. For [`Stem::Cifar`] it has a stride of 1 and no max-pool.
    #[serde(default)]
    pub stem: Stem,
    /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True by
    /// default.
    #[serde(default = "yes")]
    pub lean: bool,
}

reads_images!(ShuffleNetV2Config);
setters! { ShuffleNetV2Config:
    /// Sets the channels of the three stages, which must be even, and of the last convolution.
    with_widths(widths: [usize; 4]);
}

impl ShuffleNetV2Config {
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "shufflenet_v2_x0_5, shufflenet_v2_x1_0, shufflenet_v2_x1_5, shufflenet_v2_x2_0";

    /// The configuration called `name`, one of [`NAMES`](Self::NAMES): 1.4, 2.3, 3.5 and 7.4 million parameters at 1000 classes (Ma et al.
    /// 2018, table 5).
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub fn named(name: &str, classes: usize) -> Result<Self, Error> {
        let unknown = || Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES };
        let (_, widths) = SIZES.into_iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
        Ok(Self { widths, classes, channels: three(), stem: Stem::ImageNet, lean: yes() })
    }

    /// The name of these widths, `shufflenet_v2` if they have none.
    pub fn name(&self) -> &'static str {
        SIZES.into_iter().find(|(_, widths)| *widths == self.widths).map_or("shufflenet_v2", |(name, _)| name)
    }

    fn check(&self) -> Result<(), Error> {
        let Self { classes, channels, widths, .. } = *self;
        positive([("classes", classes), ("channels", channels)])?;
        let [stages @ .., last] = widths;
        if let Some(width) = stages.into_iter().find(|width| *width == 0 || width % 2 != 0) {
            return Err(invalid("widths", width, "even numbers above 0 for the three stages"));
        }
        if last == 0 {
            return Err(invalid("widths", last, "at least 1 for the last convolution"));
        }
        addressable("widths", stages[2].max(last), &[stages[2], last])?;
        addressable("channels", channels, &[3, 3, channels, FIRST])?;
        addressable("classes", classes, &[last, classes])
    }

    /// Builds the model on `device` with torchvision's initialisation, which is torch's default for each layer.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for sizes of 0, odd, or too large to be addressed.
    pub fn init(&self, device: &Device) -> Result<ShuffleNetV2, Error> {
        self.check()?;
        let layers = |shape| ConvNorm::new(shape, &torch_uniform(), device);
        let [second, third, fourth, last] = self.widths;
        let mut channels = FIRST;
        let mut stage = |number: usize, to: usize| {
            let block = |index| {
                let (from, stride) = if index == 0 { (channels, 2) } else { (to, 1) };
                ShuffleBlock::new([from, to], stride, self.lean, device)
            };
            let blocks = (0..BLOCKS[number]).map(block).collect();
            channels = to;
            blocks
        };
        let small = self.stem == Stem::Cifar;
        Ok(ShuffleNetV2 {
            conv1: layers(ConvShape::new([self.channels, FIRST], 3, if small { 1 } else { 2 })),
            maxpool: (!small).then(halving_pool),
            stage2: stage(0, second),
            stage3: stage(1, third),
            stage4: stage(2, fourth),
            conv5: layers(ConvShape::pointwise(fourth, last)),
            fc: LinearConfig::new(last, self.classes).init(device),
            lean: self.lean,
        })
    }
}

/// One block of a [`ShuffleNetV2`] as a chain. Each block reads the output of the block before it.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum ShuffleNetV2Block {
    /// A convolution, batch norm, ReLU, and at the beginning a max-pool.
    Conv(ConvNormActivation),
    /// From features to features.
    Shuffle(ShuffleBlock),
}

/// Divides the channels into two halves: one goes through three convolutions, the other stays as it is. In a block that halves the image,
/// both halves are made of all channels. The channels of the halves alternate in the output.
#[derive(Module, Debug)]
pub struct ShuffleBlock {
    /// The half with a single 3x3 convolution, in a block that halves the image.
    short: Option<Short>,
    long: Long,
    lean: bool,
}

/// A 3x3 convolution of each channel by itself, and a 1x1 convolution.
#[derive(Module, Debug)]
struct Short {
    depthwise: ConvNorm,
    pointwise: ConvNorm,
}

/// A 1x1 convolution, a 3x3 convolution of each channel by itself, and a 1x1 convolution.
#[derive(Module, Debug)]
struct Long {
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

impl ShuffleBlock {
    /// `to` is an even number of channels. With a stride of 1, `from` and `to` are equal.
    fn new([from, to]: [usize; 2], stride: usize, lean: bool, device: &Device) -> Self {
        let half = to / 2;
        let layers = |shape| ConvNorm::new(shape, &torch_uniform(), device);
        Self {
            short: (stride != 1).then(|| Short {
                depthwise: layers(ConvShape::depthwise(from, 3, stride)),
                pointwise: layers(ConvShape::pointwise(from, half)),
            }),
            long: Long {
                first: layers(ConvShape::pointwise(if stride == 1 { half } else { from }, half)),
                depthwise: layers(ConvShape::depthwise(half, 3, stride)),
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

    /// The paths of its layers in this crate and in torchvision's files, both below `path`.
    fn names(&self, path: &str) -> Vec<(String, String)> {
        let mut layers =
            vec![("long.first", "branch2", 0), ("long.depthwise", "branch2", 3), ("long.last", "branch2", 5)];
        if self.short.is_some() {
            layers.extend([("short.depthwise", "branch1", 0), ("short.pointwise", "branch1", 2)]);
        }
        let names = |(ours, theirs, first): (&str, &str, usize)| {
            conv_norm_names(&format!("{path}.{ours}"), &format!("{path}.{theirs}"), first)
        };
        layers.into_iter().flat_map(names).collect()
    }
}

impl Short {
    fn forward(&self, x: Tensor<4>, lean: bool) -> Tensor<4> {
        if !lean {
            return self.pointwise.stock(self.depthwise.stock(x, Identity), Relu);
        }
        let y = output(conv2d(&self.depthwise.conv(), x));
        let y = output(batch_norm_activated_conv2d(&self.depthwise.norm, Identity, &self.pointwise.conv, y));
        output(batch_norm_relu(&self.pointwise.norm, y))
    }
}

impl Long {
    fn forward(&self, x: Tensor<4>, lean: bool) -> Tensor<4> {
        if !lean {
            return self.last.stock(self.depthwise.stock(self.first.stock(x, Relu), Identity), Relu);
        }
        let y = output(conv2d(&self.first.conv, x));
        let y = output(batch_norm_relu_conv2d(&self.first.norm, &self.depthwise.conv(), y));
        let y = output(batch_norm_activated_conv2d(&self.depthwise.norm, Identity, &self.last.conv, y));
        output(batch_norm_relu(&self.last.norm, y))
    }
}

/// ShuffleNetV2 for image classification. Build one with [`ShuffleNetV2Config`].
#[derive(Module, Debug)]
pub struct ShuffleNetV2 {
    conv1: ConvNorm,
    maxpool: Option<MaxPool2d>,
    stage2: Vec<ShuffleBlock>,
    stage3: Vec<ShuffleBlock>,
    stage4: Vec<ShuffleBlock>,
    conv5: ConvNorm,
    fc: Linear,
    lean: bool,
}

impl ShuffleNetV2 {
    fn stages(&self) -> [(&'static str, &Vec<ShuffleBlock>); 3] {
        [("stage2", &self.stage2), ("stage3", &self.stage3), ("stage4", &self.stage4)]
    }

    /// The stem, the blocks of the stages and the last convolution. They turn images `[B, C, H, W]` (normalised floats) into the features
    /// that [`head`](Self::head) reads. They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<ShuffleNetV2Block> {
        let conv = |layers, pool| ShuffleNetV2Block::Conv(ConvNormActivation::of(layers, Relu, pool, self.lean));
        let stages = self.stages().into_iter().flat_map(|(_, blocks)| blocks.clone());
        let shuffled = stages.map(ShuffleNetV2Block::Shuffle);
        std::iter::once(conv(&self.conv1, self.maxpool.as_ref()))
            .chain(shuffled)
            .chain([conv(&self.conv5, None)])
            .collect()
    }

    /// Turns the features of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        layers::linear(&self.fc, x.mean_dims(&[2, 3]).flatten(1, 3))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        self.head(self.blocks().iter().fold(images_bchw, |x, block| block.forward(x)))
    }

    /// The paths of layers in this crate and in torchvision's files.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let mut names = ["conv1", "conv5"].map(|name| conv_norm_names(name, name, 0)).concat();
        for (stage, blocks) in self.stages() {
            names.extend(blocks.iter().enumerate().flat_map(|(index, block)| block.names(&format!("{stage}.{index}"))));
        }
        names
    }
}
