//! Depth and sizes of a residual network.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::{addressable, positive, reads_images, setters, three, yes};

/// The layers between the image and the first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// For images of about 224 pixels. In a ResNet: a 7x7 convolution of stride 2 and a max-pool.
    #[default]
    ImageNet,
    /// For images of about 32 pixels, which are halved fewer times. In a ResNet: a 3x3 convolution of stride 1.
    Cifar,
}

/// The four depths of He et al. 2015, table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Depth {
    ResNet18,
    ResNet34,
    ResNet50,
    ResNet101,
}

impl Depth {
    const ALL: [(&'static str, Self); 4] = [
        ("resnet18", Self::ResNet18),
        ("resnet34", Self::ResNet34),
        ("resnet50", Self::ResNet50),
        ("resnet101", Self::ResNet101),
    ];
}

/// The configuration of a [`ResNet`](crate::ResNet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    #[serde(rename = "name")]
    depth: Depth,
    /// Number of classes, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 by default.
    #[serde(default = "three")]
    pub channels: usize,
    /// Channels of the first stage; 64 in the paper and by default.
    #[serde(default = "sixty_four")]
    pub width: usize,
    /// The layers before the first block.
    #[serde(default)]
    pub stem: Stem,
    /// Whether the last batch-norm scale of every block starts at zero, so that each block begins as the identity (Goyal et al.
    /// 2017, section 5.1); true by default.
    #[serde(default = "yes")]
    pub zero_init: bool,
    /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True by
    /// default.
    #[serde(default = "yes")]
    pub lean: bool,
}

fn sixty_four() -> usize {
    64
}

reads_images!(ResNetConfig);
setters! { ResNetConfig:
    /// Sets the number of channels of the first stage.
    with_width(width: usize);
    /// Sets whether the last batch-norm scale of every block starts at zero, so that each block begins as the identity.
    with_zero_init(zero_init: bool);
}

impl ResNetConfig {
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "resnet18, resnet34, resnet50, resnet101";

    fn new(depth: Depth, classes: usize) -> Self {
        let (channels, width) = (three(), sixty_four());
        Self { depth, classes, channels, width, stem: Stem::ImageNet, zero_init: yes(), lean: yes() }
    }

    /// ResNet-18: basic blocks, 11.7 million parameters at 1000 classes.
    pub fn resnet18(classes: usize) -> Self {
        Self::new(Depth::ResNet18, classes)
    }

    /// ResNet-34: basic blocks, 21.8 million parameters at 1000 classes.
    pub fn resnet34(classes: usize) -> Self {
        Self::new(Depth::ResNet34, classes)
    }

    /// ResNet-50: bottlenecks, 25.6 million parameters at 1000 classes.
    pub fn resnet50(classes: usize) -> Self {
        Self::new(Depth::ResNet50, classes)
    }

    /// ResNet-101: bottlenecks, 44.5 million parameters at 1000 classes.
    pub fn resnet101(classes: usize) -> Self {
        Self::new(Depth::ResNet101, classes)
    }

    /// The configuration called `name`, one of [`NAMES`](Self::NAMES).
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub fn named(name: &str, classes: usize) -> Result<Self, Error> {
        match Depth::ALL.into_iter().find(|(known, _)| *known == name) {
            Some((_, depth)) => Ok(Self::new(depth, classes)),
            None => Err(Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES }),
        }
    }

    /// The name of this depth, one of [`NAMES`](Self::NAMES).
    pub fn name(&self) -> &'static str {
        Depth::ALL.into_iter().find(|(_, depth)| *depth == self.depth).map_or("resnet", |(name, _)| name)
    }

    /// Blocks of each stage.
    pub(crate) fn stages(&self) -> [usize; 4] {
        match self.depth {
            Depth::ResNet18 => [2, 2, 2, 2],
            Depth::ResNet34 | Depth::ResNet50 => [3, 4, 6, 3],
            Depth::ResNet101 => [3, 4, 23, 3],
        }
    }

    /// Channels of the output of stage `number`, counted from zero: 4 times the inner channels in bottlenecks.
    pub(crate) fn stage(&self, number: usize) -> usize {
        let expansion = if matches!(self.depth, Depth::ResNet18 | Depth::ResNet34) { 1 } else { 4 };
        (self.width << number) * expansion
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { classes, channels, width, .. } = *self;
        positive([("classes", classes), ("channels", channels), ("width", width)])?;
        // The last stage has 8 times the width, and up to 4 times that at its end.
        addressable("width", width, &[3, 3, 8, 8, width, width])?;
        addressable("channels", channels, &[7, 7, channels, width])?;
        addressable("classes", classes, &[8, 4, width, classes])
    }
}
