//! `kiln train classify`.

use clap::Args;

use super::defaults;
use super::learning::TeacherArgs;
use super::parallel::ParallelArgs;
use super::run::RunArgs;
use super::values::{CHANNELS, DAMAGED, DECODE, STEM};

#[derive(Args)]
#[command(mut_args(defaults::classify))]
pub struct TrainClassify {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) classify: ClassifyArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
}

/// The model of a classifier and its images.
#[derive(Args)]
pub(crate) struct ClassifyArgs {
    /// The network, by torchvision's or timm's name [default: resnet18]
    ///
    /// resnet18, 34, 50 or 101; mobilenet_v2 or v3_large; shufflenet_v2_x0_5, x1_0, x1_5 or x2_0; vit_tiny, small or base.
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub(crate) model: Option<String>,
    /// Channels of a ResNet's first stage, or factor of a MobileNet's [default: 64 or 1]
    ///
    /// A ResNet on the small data set of the project has 16.
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub(crate) width: Option<f64>,
    /// For images of about 224 pixels (imagenet) or 32 (cifar) [default: as the images]
    ///
    /// A network with the stem cifar halves its input less often. Vision transformers have no stem.
    #[arg(long, value_parser = STEM, value_name = "NAME", help_heading = "Model")]
    pub(crate) stem: Option<String>,
    /// Pixels per side that images are brought to [default: their own where they are small, or 224]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) image_size: Option<u32>,
    /// Train on gray images (1) or on RGB (3) [default: 3; 1 of IDX files]
    ///
    /// Files of either kind are decoded to what is said.
    #[arg(long, value_name = "N", value_parser = CHANNELS, help_heading = "Data")]
    pub(crate) channels: Option<String>,
    /// Make images smaller from all of their pixels (exact) or quicker (fast) [default: fast]
    ///
    /// fast reads fewer pixels where that is quicker, at least twice as many per side as are needed.
    #[arg(long, value_parser = DECODE, value_name = "QUALITY", help_heading = "Data")]
    pub(crate) decode: Option<String>,
    /// Read over damage of JPEGs that libjpeg reads over (repair), or refuse [default: repair]
    ///
    /// Images with such damage are counted either way.
    #[arg(long, value_parser = DAMAGED, value_name = "WHAT", help_heading = "Data")]
    pub(crate) damaged_images: Option<String>,
    /// Probability mass that is spread over all classes [default: 0.1]
    #[arg(long, value_name = "P", help_heading = "Regularization")]
    pub(crate) label_smoothing: Option<f64>,
    /// Mix training images in pairs, with shares from Beta(ALPHA, ALPHA) [default: 0]
    ///
    /// 0 is off, 0.8 is DeiT's.
    #[arg(long, value_name = "ALPHA", help_heading = "Regularization")]
    pub(crate) mixup: Option<f64>,
    /// Replace a box of each training image by that of another one [default: 0]
    ///
    /// Areas are from Beta(ALPHA, ALPHA); 0 is off, 1 is DeiT's. With --mixup each batch takes one of the two.
    #[arg(long, value_name = "ALPHA", help_heading = "Regularization")]
    pub(crate) cutmix: Option<f64>,
    /// Overwrite a rectangle of a training image with noise with this probability [default: 0]
    ///
    /// DeiT's is 0.25.
    #[arg(long, value_name = "P", help_heading = "Regularization")]
    pub(crate) erase: Option<f64>,
    /// Probability of leaving out a branch of a vision transformer's last block [default: 0]
    ///
    /// Each sample leaves out branches by itself, fewer in the blocks before. DeiT's is 0.1.
    #[arg(long, value_name = "P", help_heading = "Regularization")]
    pub(crate) drop_path: Option<f64>,
    #[command(flatten)]
    pub(crate) teacher: TeacherArgs,
}
