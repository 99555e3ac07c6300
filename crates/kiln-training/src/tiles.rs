//! Predictions for images of any size, tile by tile.

use std::cell::RefCell;
use std::ops::Range;

use burn::tensor::{Device, ExecutionError, Tensor};
use kiln_data::{Blend, Stitch, TileBatch, TileSet};

use crate::batch::in_parts;
use crate::error::Error;

/// Predicts whole images from their tiles, within the memory of some tiles and one row of them.
///
/// If memory runs out, it continues with fewer tiles at once, as an evaluation does.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kiln_data::{Blend, LoaderConfig, Normalize, TileBatch, TileConfig, TileSet};
/// use kiln_training::{Predicted, TilePredictor};
///
/// # let scene = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/geotiff/elevation.tif"));
/// let set = TileSet::new([scene], TileConfig::new(64).with_overlap(16))?; // 187x152 pixels, one band
/// let normalize = Normalize { mean: vec![3119.5], std: vec![300.0] };
/// let predictor = TilePredictor { set: &set, classes: 1, blend: Blend::RaisedCosine, device: &Device::flex(), at_once: 2 };
/// let batches = TileBatch::loader(set.clone(), None, LoaderConfig::new(4))?.epoch(0, 0);
/// let mut rows = 0;
/// predictor.run(
///     batches.map(|batch| Ok(batch?)),
///     |tiles| Ok(tiles.to_device(&normalize, predictor.device)?.images), // the model would be here
///     |predicted| {
///         if let Predicted::Row { values, .. } = predicted {
///             rows += 1; // the values of one row, [classes, width]
///             assert_eq!(values.len(), 152);
///         }
///         Ok(())
///     },
/// )?;
/// assert_eq!(rows, 187);
/// # Ok::<(), kiln_training::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TilePredictor<'a> {
    /// The images.
    pub set: &'a TileSet,
    /// Values per pixel.
    pub classes: usize,
    /// The weight of a prediction across its tile.
    pub blend: Blend,
    /// A device without autodiff.
    pub device: &'a Device,
    /// The most tiles on the device at once.
    pub at_once: usize,
}

/// An event of an image: a row, or its end.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Predicted<'a> {
    /// A row.
    Row {
        /// The image of the set.
        image: usize,
        /// The number of the row, from 0 on.
        y: usize,
        /// `[classes, width]`.
        values: &'a [f32],
    },
    /// The last row of the image was reported.
    Complete {
        /// The image of the set.
        image: usize,
    },
    /// A tile of the image could not be read, and the loader skips unreadable tiles. No more rows of this image follow.
    LeftOut {
        /// The image of the set.
        image: usize,
    },
}

impl TilePredictor<'_> {
    /// Processes `batches`, which have the tiles of all images of the set in order. `forward` computes predictions `[B, classes, tile,
    /// tile]` of the `B` tiles of a batch. `tell` gets the rows of each image, from the top. The loader may skip tiles that it cannot
    /// read ([`BadSamples::skip`](kiln_data::BadSamples::skip)), but it must not put others in their place.
    ///
    /// # Errors
    /// Those of the batches, of `forward` and of `tell`; [`Error::Memory`] when a single tile does not fit.
    pub fn run(
        &self,
        batches: impl Iterator<Item = Result<TileBatch, Error>>,
        forward: impl Fn(&TileBatch) -> Result<Tensor<4>, Error>,
        tell: impl FnMut(Predicted<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let side = self.set.config().tile;
        let work = |part: &TileBatch| {
            let data = forward(part)?.try_into_data()?;
            let values = data.convert::<f32>().try_into_vec::<f32>();
            values.map_err(|e| Error::from(ExecutionError::generic(e.to_string())))
        };
        let (tell, failure) = (RefCell::new(tell), RefCell::new(None));
        let tell = |predicted: Predicted<'_>| (tell.borrow_mut())(predicted);
        // A stitch returns only kiln-data's errors.
        let row = |image, y, values: &[f32]| {
            tell(Predicted::Row { image, y, values }).map_err(|error| {
                *failure.borrow_mut() = Some(error);
                kiln_data::Error::Cancelled
            })
        };
        let left_out =
            |images: Range<usize>| images.into_iter().try_for_each(|image| tell(Predicted::LeftOut { image }));
        let mut current = None;
        // The number of images that were reached so far.
        let mut seen = 0;
        in_parts(
            batches,
            self.device,
            |_| self.at_once,
            work,
            |part, values| {
                for (id, values) in part.ids.iter().zip(values.chunks_exact(self.classes * side * side)) {
                    let place = self.set.place(*id);
                    let image = place.image;
                    if image >= seen {
                        // The image before lacks its last tiles, and no tile of the images in between could be read.
                        left_out(seen - usize::from(current.is_some())..image)?;
                        let write = move |y, values: &[f32]| row(image, y, values);
                        let stitch = Stitch::new(*self.set.grid(image), self.classes, self.blend, write)?;
                        (seen, current) = (image + 1, Some((0, stitch)));
                    }
                    // After a missing tile, the other tiles of its image are skipped.
                    let Some((next, stitch)) = current.as_mut().filter(|(next, _)| *next == place.tile) else {
                        continue;
                    };
                    stitch.add(place.tile, values).map_err(|error| failure.take().unwrap_or(error.into()))?;
                    *next += 1;
                    if *next == self.set.grid(image).tiles() {
                        current = None;
                        tell(Predicted::Complete { image })?;
                    }
                }
                Ok(())
            },
        )?;
        left_out(seen - usize::from(current.is_some())..self.set.images())
    }
}
