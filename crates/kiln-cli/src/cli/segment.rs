//! `kiln train segment` and `kiln eval segment`.

use std::path::PathBuf;

use clap::Args;

use super::defaults;
use super::run::{EvalArgs, RunArgs};

#[derive(Args)]
#[command(mut_args(defaults::segment))]
pub struct TrainSegment {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) segment: SegmentArgs,
}

/// The model of a segmentation, its tiles and its loss.
#[derive(Args)]
pub(crate) struct SegmentArgs {
    /// Whose blocks are the encoder [default: resnet18]
    ///
    /// resnet18, 34, 50 or 101, or mobilenet_v2.
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub(crate) encoder: Option<String>,
    /// Factor of the encoder's numbers of channels [default: 1, without --data 0.25]
    #[arg(long, value_name = "X", help_heading = "Model")]
    pub(crate) width: Option<f64>,
    /// Number of classes, for a data set without classes.txt
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) classes: Option<u32>,
    /// Rows and columns of a tile, a multiple of 32 [default: 128]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) tile: Option<u32>,
    /// Rows and columns that neighbouring tiles of training share [default: half a tile]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) overlap: Option<u32>,
    /// Class id of pixels that do not count, or none [default: 255]
    #[arg(long, value_name = "ID", help_heading = "Data")]
    pub(crate) ignore: Option<String>,
    /// Weights of the classes in the cross-entropy [default: all 1]
    ///
    /// balanced (all classes have the same share), or a number for each, as in 1,2.5,1.
    #[arg(long, value_name = "WEIGHTS", help_heading = "Training")]
    pub(crate) class_weights: Option<String>,
    /// Factor of the Dice loss, which is added to the cross-entropy [default: 1]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub(crate) dice: Option<f64>,
}

/// What the checkpoint was trained with is read from the run directory it lies in, or from --config.
#[derive(Args)]
pub struct EvalSegment {
    #[command(flatten)]
    pub(crate) eval: EvalArgs,
    /// Write the class of each pixel to DIR/NAME.tif [default: only scores]
    ///
    /// The file of a GeoTIFF lies on the map where its image does.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) predict: Option<PathBuf>,
    /// With --predict: images of any size, without masks [default: those of the data set]
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "predict", help_heading = "Data")]
    pub(crate) image: Vec<PathBuf>,
    /// Rows and columns of a tile, a multiple of 32 [default: as in training]
    #[arg(long, value_name = "N")]
    pub(crate) tile: Option<u32>,
    /// Rows and columns that neighbouring tiles share [default: a quarter of a tile]
    ///
    /// Their predictions are blended there.
    #[arg(long, value_name = "N")]
    pub(crate) overlap: Option<u32>,
}
