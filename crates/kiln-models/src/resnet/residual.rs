//! Residual blocks, basic and bottleneck.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use kiln_layers::{batch_norm_relu_conv2d, conv2d, conv2d_batch_norm, residual_end};

use super::config::ResNetConfig;
use crate::layer;
use crate::lean::{output, usable};
use crate::norms::batch_norm;

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

/// A bias-free square convolution, padded to keep the size at stride 1.
pub(super) fn conv([from, to]: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Conv2d {
    let pad = kernel / 2;
    Conv2dConfig::new([from, to], [kernel, kernel])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false)
        .with_initializer(Initializer::KaimingNormal { gain: f64::sqrt(2.0), fan_out_only: true })
        .init(device)
}

impl ResidualBlock {
    /// A block of `[from, inner, to]` channels, which is a bottleneck when `inner` and `to` differ.
    pub(super) fn new([from, inner, to]: [usize; 3], stride: usize, config: &ResNetConfig, device: &Device) -> Self {
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
            Some(down) => batch_norm(&down.norm, layer::conv2d(&down.conv, x.clone())),
            None => x.clone(),
        };
        let y = relu(batch_norm(&self.bn1, layer::conv2d(&self.conv1, x)));
        let y = batch_norm(&self.bn2, layer::conv2d(&self.conv2, y));
        let y = match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) => batch_norm(bn3, layer::conv2d(conv3, relu(y))),
            _ => y,
        };
        relu(y + identity)
    }
}
