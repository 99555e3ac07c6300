//! Deep residual networks: He et al. 2015, as torchvision builds them.

mod config;

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d};
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use kiln_layers::{batch_norm_relu_conv2d, conv2d, conv2d_batch_norm, conv2d_batch_norm_relu, residual_end};

use crate::Error;
use crate::layers::{self, ConvShape, batch_norm, halving_pool, he_normal, max_pool2d, output, usable};

pub use config::{ResNetConfig, Stem};

/// One block of a [`ResNet`] as a chain. Each block reads the output of the block before it.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum ResNetBlock {
    /// From images to features, in the dtype of the weights.
    Stem(StemLayers),
    /// From features to features.
    Residual(ResidualBlock),
}

/// The layers before the first residual block.
#[derive(Module, Debug)]
pub struct StemLayers {
    conv1: Conv2d,
    bn1: BatchNorm,
    maxpool: Option<MaxPool2d>,
    lean: bool,
}

impl ResNetBlock {
    /// `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Stem(layers) => layers.forward(x),
            Self::Residual(block) => block.forward(x),
        }
    }
}

impl StemLayers {
    /// The layers without the max-pool, and the max-pool by itself.
    pub(crate) fn into_parts(self) -> (Self, Option<MaxPool2d>) {
        let pool = self.maxpool.clone();
        (Self { maxpool: None, ..self }, pool)
    }

    fn forward(&self, images_bchw: Tensor<4>) -> Tensor<4> {
        let images_bchw = images_bchw.cast(self.conv1.weight.val().dtype());
        let lean = usable(self.lean, &images_bchw);
        let x = match lean {
            true => output(conv2d_batch_norm_relu(&self.conv1, &self.bn1, images_bchw)),
            false => relu(batch_norm(&self.bn1, layers::conv2d(&self.conv1, images_bchw))),
        };
        match &self.maxpool {
            Some(pool) => max_pool2d(pool, lean, x),
            None => x,
        }
    }
}

/// One residual block: two convolutions of 3x3 (basic), or three of 1x1, 3x3 and 1x1 (bottleneck), plus the input.
///
/// The 3x3 convolution of a bottleneck has its stride, as in torchvision ("ResNet v1.5").
#[derive(Module, Debug)]
pub struct ResidualBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm>,
    downsample: Option<Downsample>,
    lean: bool,
}

/// A strided 1x1 convolution and its norm, which give the input the shape of the block's output.
#[derive(Module, Debug)]
struct Downsample {
    conv: Conv2d,
    norm: BatchNorm,
}

/// A square convolution without a bias, padded to keep the size at stride 1.
fn conv(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Conv2d {
    ConvShape::new(channels, kernel, stride).init(&he_normal(), device)
}

impl ResidualBlock {
    /// A block of `[from, inner, to]` channels, which is a bottleneck when `inner` and `to` differ.
    fn new([from, inner, to]: [usize; 3], stride: usize, config: &ResNetConfig, device: &Device) -> Self {
        let norm = |channels| BatchNormConfig::new(channels).init(device);
        let last = |channels| {
            let mut norm = norm(channels);
            if config.zero_init {
                norm.gamma = Initializer::Zeros.init([channels], device);
            }
            norm
        };
        let bottleneck = inner != to;
        let (kernels, strides) = if bottleneck { ([1, 3], [1, stride]) } else { ([3, 3], [stride, 1]) };
        Self {
            conv1: conv([from, inner], kernels[0], strides[0], device),
            bn1: norm(inner),
            conv2: conv([inner, inner], kernels[1], strides[1], device),
            bn2: if bottleneck { norm(inner) } else { last(inner) },
            conv3: bottleneck.then(|| conv([inner, to], 1, 1, device)),
            bn3: bottleneck.then(|| last(to)),
            downsample: (stride != 1 || from != to)
                .then(|| Downsample { conv: conv([from, to], 1, stride, device), norm: norm(to) }),
            lean: config.lean,
        }
    }

    /// `[B, C, H, W]` to `[B, C', H / stride, W / stride]`, rounded up.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match usable(self.lean, &x) {
            true => self.lean(x),
            false => self.stock(x),
        }
    }

    /// Runs the block on kiln-layers' operations. It keeps the output of the block, the outputs of its convolutions except the last, and
    /// the output of the residual.
    fn lean(&self, x: Tensor<4>) -> Tensor<4> {
        let identity = match &self.downsample {
            Some(down) => output(conv2d_batch_norm(&down.conv, &down.norm, x.clone())),
            None => x.clone(),
        };
        let y = output(conv2d(&self.conv1, x));
        output(match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) => {
                let y = output(batch_norm_relu_conv2d(&self.bn1, &self.conv2, y));
                residual_end(&self.bn2, conv3, bn3, y, identity)
            }
            _ => residual_end(&self.bn1, &self.conv2, &self.bn2, y, identity),
        })
    }

    fn stock(&self, x: Tensor<4>) -> Tensor<4> {
        let identity = match &self.downsample {
            Some(down) => batch_norm(&down.norm, layers::conv2d(&down.conv, x.clone())),
            None => x.clone(),
        };
        let y = relu(batch_norm(&self.bn1, layers::conv2d(&self.conv1, x)));
        let y = batch_norm(&self.bn2, layers::conv2d(&self.conv2, y));
        let y = match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) => batch_norm(bn3, layers::conv2d(conv3, relu(y))),
            _ => y,
        };
        relu(y + identity)
    }
}

/// A residual network for image classification. Build one with [`ResNetConfig`].
///
/// Fields have torchvision's names, so that the paths of parameters are the names in torchvision's files.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm,
    maxpool: Option<MaxPool2d>,
    layer1: Vec<ResidualBlock>,
    layer2: Vec<ResidualBlock>,
    layer3: Vec<ResidualBlock>,
    layer4: Vec<ResidualBlock>,
    avgpool: AdaptiveAvgPool2d,
    fc: Linear,
    lean: bool,
}

impl ResNetConfig {
    /// Builds the model on `device` with torchvision's initialisation: He-normal by fan-out for convolutions (He et al. 2015b),
    /// ones and zeros for batch-norm.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] when `classes`, `channels` or `width` is 0 or too large to be addressed.
    pub fn init(&self, device: &Device) -> Result<ResNet, Error> {
        self.check()?;
        let (kernel, stride) = match self.stem {
            Stem::ImageNet => (7, 2),
            Stem::Cifar => (3, 1),
        };
        let mut channels = self.width;
        let mut stage = |number: usize| {
            let (inner, out) = (self.width << number, self.stage(number));
            (0..self.stages()[number])
                .map(|i| {
                    let stride = if i == 0 && number > 0 { 2 } else { 1 };
                    let block = ResidualBlock::new([channels, inner, out], stride, self, device);
                    channels = out;
                    block
                })
                .collect()
        };
        let (layer1, layer2, layer3, layer4) = (stage(0), stage(1), stage(2), stage(3));
        Ok(ResNet {
            conv1: conv([self.channels, self.width], kernel, stride, device),
            bn1: BatchNormConfig::new(self.width).init(device),
            maxpool: (self.stem == Stem::ImageNet).then(halving_pool),
            layer1,
            layer2,
            layer3,
            layer4,
            avgpool: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            fc: LinearConfig::new(channels, self.classes).init(device),
            lean: self.lean,
        })
    }
}

impl ResNet {
    /// The stem and the residual blocks, first to last. They turn images `[B, C, H, W]` (normalised floats) into the features that
    /// [`head`](Self::head) reads. They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<ResNetBlock> {
        let (conv1, bn1, maxpool) = (self.conv1.clone(), self.bn1.clone(), self.maxpool.clone());
        let stem = StemLayers { conv1, bn1, maxpool, lean: self.lean };
        let residual = [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten();
        std::iter::once(ResNetBlock::Stem(stem)).chain(residual.cloned().map(ResNetBlock::Residual)).collect()
    }

    /// Turns the features of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        layers::linear(&self.fc, self.avgpool.forward(x).flatten(1, 3))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        self.head(self.blocks().iter().fold(images_bchw, |x, block| block.forward(x)))
    }
}
