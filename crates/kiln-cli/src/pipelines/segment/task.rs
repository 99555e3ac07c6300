//! The loss and the metrics of a segmentation.
// B batch, C channels or classes, H height, W width

use anyhow::Result;
use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_data::{Blend, Normalize, TileBatch, TileSet, TileTensors};
use kiln_layers::SegmentationLoss;
use kiln_models::{Unet, UnetBlock, UnetConfig};
use kiln_training::{BatchSource, Error, Goal, Pass, Passes, Predicted, Task, TilePredictor};

use super::score::{ScoredRow, Scores, score};
use super::settings::{SegmentSettings, Tiles};
use crate::pipelines::pipeline::{Chained, Kind, Pipeline};
use crate::usage::Usage;

/// The task of segmentation. Training uses cross-entropy and Dice. Evaluation reports mean IoU, accuracy and cross-entropy of the pixels
/// of whole images.
pub struct Segment {
    normalize: Normalize,
    loss: SegmentationLoss,
    classes: usize,
    /// The images for evaluation. `None` while steps are planned.
    test: Option<TileSet>,
}

impl Task for Segment {
    type Model = Unet;
    type Batch = TileBatch;

    fn loss(&self, pass: &Pass<'_, Unet>, batch: &TileBatch) -> Tensor<1> {
        self.chain_loss(pass, batch)
    }

    /// Evaluates whole images, each joined from its tiles.
    fn evaluate<S>(
        &self,
        model: &Unet,
        data: &S,
        passes: &Passes,
        at_once: impl Fn(&TileBatch) -> usize,
    ) -> Result<Vec<(&'static str, f64)>, Error>
    where
        S: BatchSource<Batch = TileBatch> + ?Sized,
    {
        let Some(test) = &self.test else { return Ok(vec![]) };
        let mut batches = data.epoch(0, 0).peekable();
        let tiles = batches.peek().and_then(|batch| batch.as_ref().ok()).map_or(1, at_once);
        let Scores { confusion, cross_entropy } = self.score(model, test, batches, passes, tiles, |_| Ok(()))?;
        Ok(vec![
            ("val_miou", confusion.mean_iou()),
            ("val_accuracy", confusion.accuracy()),
            ("val_loss", cross_entropy),
        ])
    }
}

impl Pipeline for Segment {
    type Data = Tiles;
    type Config = UnetConfig;

    const KIND: Kind =
        Kind { tables: &["tiles", "loss"], compresses: false, command: "segment", model: "a segmentation" };
    const METRIC: &'static str = "val_miou";
    const GOAL: Goal = Goal::Highest;
}

impl Chained for Segment {
    type Block = UnetBlock;
    type X = (Tensor<4>, Vec<Tensor<4>>);
    /// The classes of pixels, and the weights of pixels.
    type Target = (Tensor<3, Int>, Tensor<3>);

    fn begin(&self, _: &Unet, batch: &TileBatch, device: &Device) -> (Self::X, Self::Target) {
        let TileTensors { images, masks, weights } = self.on_device(batch, device);
        let masks = masks.expect("a set to train on has masks");
        ((images, vec![]), (masks, weights))
    }

    fn blocks(&self, model: &Unet) -> Vec<UnetBlock> {
        model.blocks()
    }

    fn forward(block: &UnetBlock, x: Self::X) -> Self::X {
        block.forward(x)
    }

    fn end(&self, _: &Unet, (logits, _): Self::X, (classes, weights): Self::Target) -> Tensor<1> {
        self.loss.forward(logits, classes, weights).expect("sizes of one batch, and weights of all classes")
    }
}

impl Segment {
    /// The tiles of a batch on `device`.
    fn on_device(&self, batch: &TileBatch, device: &Device) -> TileTensors {
        batch.to_device(&self.normalize, device).expect("as many means and deviations as the images have bands")
    }

    /// Compares the predictions of `model` for the images of `set` with their masks. `batches` are the tiles of `set`; at most `tiles`
    /// are on the device at once. `row` gets each row.
    ///
    /// # Errors
    /// Those of [`TilePredictor::run`] and of the masks.
    pub fn score(
        &self,
        model: &Unet,
        set: &TileSet,
        batches: impl Iterator<Item = Result<TileBatch, Error>>,
        passes: &Passes,
        tiles: usize,
        row: impl FnMut(ScoredRow<'_>) -> Result<(), Error>,
    ) -> Result<Scores, Error> {
        let model = model.valid();
        score(&self.predictor(set, passes.device(), tiles), batches, |batch| self.logits(&model, batch, passes), row)
    }

    /// Processes the predictions of `model` for the images of `set`, and reports them as [`TilePredictor::run`] does.
    ///
    /// # Errors
    /// Those of [`TilePredictor::run`].
    pub fn predict(
        &self,
        model: &Unet,
        set: &TileSet,
        batches: impl Iterator<Item = Result<TileBatch, Error>>,
        passes: &Passes,
        tiles: usize,
        tell: impl FnMut(Predicted<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let model = model.valid();
        self.predictor(set, passes.device(), tiles).run(batches, |batch| self.logits(&model, batch, passes), tell)
    }

    fn logits(&self, model: &Unet, batch: &TileBatch, passes: &Passes) -> Result<Tensor<4>, Error> {
        let pass = passes.of(model);
        let images = self.on_device(batch, passes.device()).images;
        let (logits, _) = pass.chain(&self.blocks(model), (images, vec![]), Self::forward);
        pass.finish()?;
        // The last layers of the model may be on another device.
        Ok(logits.cast(DType::F32).to_device(passes.device()))
    }

    fn predictor<'a>(&self, set: &'a TileSet, device: &'a Device, at_once: usize) -> TilePredictor<'a> {
        TilePredictor { set, classes: self.classes, blend: Blend::RaisedCosine, device, at_once }
    }
}

/// The task of the settings, evaluated on `test`.
///
/// # Errors
/// [`Usage`] for numbers of bands or classes that do not fit together, and for invalid shares of losses.
pub fn segment(settings: &SegmentSettings, test: Option<TileSet>) -> Result<Segment> {
    let (classes, channels) = (settings.model.classes, settings.model.channels);
    let Normalize { mean, std } = &settings.data.tiles.normalize;
    let weights = settings.data.loss.class_weights.as_ref();
    for (what, found, expected, of) in [
        ("means of bands", mean.len(), channels, "channels of the model"),
        ("deviations of bands", std.len(), channels, "channels of the model"),
        ("class weights", weights.map_or(classes, Vec::len), classes, "classes of the model"),
    ] {
        if found != expected {
            return Err(Usage(format!("there are {found} {what}, expected {expected} as {of}")).into());
        }
    }
    let refuse = |what, value, expected| Err(Usage(format!("{what} is {value}, expected {expected}")).into());
    if let Some(weight) =
        weights.and_then(|weights| weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)))
    {
        return refuse("a class weight", f64::from(*weight), "a number of at least 0");
    }
    if let Some(std) = std.iter().find(|std| !(std.is_finite() && **std > 0.0)) {
        return refuse("the deviation of a band", f64::from(*std), "a number above 0");
    }
    let shares = [settings.data.loss.cross_entropy, settings.data.loss.dice];
    if let Some(share) = shares.iter().find(|share| !(share.is_finite() && **share >= 0.0)) {
        return refuse("the share of a loss", *share, "a number of at least 0");
    }
    if shares == [0.0; 2] {
        return refuse("the share of both losses", 0.0, "one above 0");
    }
    let loss = SegmentationLoss::new().with_shares(shares[0] as f32, shares[1] as f32);
    let loss = match weights {
        Some(weights) => loss.with_class_weights(weights.clone()),
        None => loss,
    };
    Ok(Segment { normalize: settings.data.tiles.normalize.clone(), loss, classes, test })
}

/// The task for memory predictions on RGB images, without data.
pub fn segment_for_planning(classes: usize) -> Segment {
    Segment { normalize: Normalize::for_channels(3), loss: SegmentationLoss::new(), classes, test: None }
}
