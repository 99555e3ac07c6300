//! `cargo xtask train segment` and `cargo xtask eval segment`.

use std::path::PathBuf;

use clap::Args;

use super::run::{EvalArgs, RunArgs};

/// A data set is a directory with images/ and masks/, or with train/ and test/ of those. A mask is a TIFF or PNG of class ids with the
/// name and size of its image; classes.txt has the name of a class on each line.
#[derive(Args)]
pub struct TrainSegment {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Whose blocks are the encoder: resnet18, 34, 50 or 101, or mobilenet_v2 [default: resnet18]
    #[arg(long, value_name = "NAME")]
    pub(crate) encoder: Option<String>,
    /// What the encoder's numbers of channels are multiplied by [default: 1, of the small data set 0.25]
    #[arg(long, value_name = "X")]
    pub(crate) width: Option<f64>,
    /// Number of classes, for a data set without classes.txt
    #[arg(long, value_name = "N")]
    pub(crate) classes: Option<u32>,
    /// Rows and columns of a tile, a multiple of 32 [default: 128]
    #[arg(long, value_name = "N")]
    pub(crate) tile: Option<u32>,
    /// Rows and columns that neighbouring tiles of training share [default: half a tile]
    #[arg(long, value_name = "N")]
    pub(crate) overlap: Option<u32>,
    /// Class id of pixels that do not count, or none [default: 255]
    #[arg(long, value_name = "ID")]
    pub(crate) ignore: Option<String>,
    /// Weights of the classes in the cross-entropy: balanced (all classes the same share), or a number for each, as in 1,2.5,1
    /// [default: all 1]
    #[arg(long, value_name = "WEIGHTS")]
    pub(crate) class_weights: Option<String>,
    /// What the Dice loss is multiplied by before it is added to the cross-entropy [default: 1]
    #[arg(long, value_name = "X")]
    pub(crate) dice: Option<f64>,
}

/// What the checkpoint was trained with is read from the run directory it lies in, or from --config.
#[derive(Args)]
pub struct EvalSegment {
    #[command(flatten)]
    pub(crate) eval: EvalArgs,
    /// Write the class of each pixel to DIR/NAME.tif, where the image lies if it is a GeoTIFF
    #[arg(long, value_name = "DIR")]
    pub(crate) predict: Option<PathBuf>,
    /// With --predict: images of any size, without masks, in place of the data set's
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "predict")]
    pub(crate) image: Vec<PathBuf>,
    /// Rows and columns of a tile, a multiple of 32 [default: as in training]
    #[arg(long, value_name = "N")]
    pub(crate) tile: Option<u32>,
    /// Rows and columns that neighbouring tiles share, in which their predictions are blended [default: a quarter of a tile]
    #[arg(long, value_name = "N")]
    pub(crate) overlap: Option<u32>,
}
