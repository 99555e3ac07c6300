//! Predictions of whole images, and their scores.

use std::ops::Range;

use burn::tensor::Tensor;
use kiln_data::{ClassIds, TileBatch, TileSet, printable};
use kiln_training::{Confusion, Error, Predicted, TilePredictor};

/// The scores of predictions.
pub struct Scores {
    /// Counts of true and predicted classes.
    pub confusion: Confusion,
    /// Mean cross-entropy of a pixel, in nats.
    pub cross_entropy: f64,
}

/// A row of an image, its predicted classes, and the true ones.
pub struct ScoredRow<'a> {
    /// The image of the set.
    pub image: usize,
    /// The number of the row.
    pub y: usize,
    /// The predicted class of each pixel.
    pub predicted: &'a [u16],
    /// The true class of each pixel.
    pub truth: &'a [i64],
}

/// Compares predictions with the masks of the predictor's set. `forward` computes them for the tiles of a batch. Images with an
/// unreadable tile are left out, and a warning names them.
///
/// # Errors
/// Those of [`TilePredictor::run`] and of the masks.
pub(super) fn score(
    predictor: &TilePredictor<'_>,
    batches: impl Iterator<Item = Result<TileBatch, Error>>,
    forward: impl Fn(&TileBatch) -> Result<Tensor<4>, Error>,
    mut row: impl FnMut(ScoredRow<'_>) -> Result<(), Error>,
) -> Result<Scores, Error> {
    let TilePredictor { set, classes, .. } = *predictor;
    let ignored = set.classes().and_then(|classes| classes.ignore).map(usize::from);
    let none = || (Confusion::new(classes), 0.0);
    let (mut all, mut of_image) = (none(), none());
    let mut masks = MaskRows { set, image: 0, rows: 0..0, ids: vec![] };
    let mut predicted = vec![];
    predictor.run(batches, forward, |event| {
        match event {
            Predicted::Row { image, y, values } => {
                let width = values.len() / classes;
                largest(values, classes, &mut predicted);
                let truth = masks.row(image, y, width)?;
                let (confusion, entropy) = &mut of_image;
                for (x, (truth, predicted)) in truth.iter().zip(&predicted).enumerate() {
                    let truth =
                        usize::try_from(*truth).ok().filter(|truth| *truth < classes && Some(*truth) != ignored);
                    let Some(truth) = truth else { continue };
                    let logit = |class: usize| f64::from(values[class * width + x]);
                    let predicted = usize::from(*predicted);
                    let most = logit(predicted);
                    let sum: f64 = (0..classes).map(|class| (logit(class) - most).exp()).sum();
                    *entropy += sum.ln() + most - logit(truth);
                    confusion.add(truth, counted_as(predicted, truth, classes, logit));
                }
                row(ScoredRow { image, y, predicted: &predicted, truth })?;
            }
            Predicted::Complete { .. } => {
                let (confusion, entropy) = std::mem::replace(&mut of_image, none());
                all.0.merge(&confusion);
                all.1 += entropy;
            }
            Predicted::LeftOut { image } => {
                of_image = none();
                tracing::warn!("left out: '{}', of which a tile cannot be read", printable(set.path(image)));
            }
            _ => {}
        }
        Ok(())
    })?;
    let (confusion, entropy) = all;
    let pixels: u64 = confusion.truths().iter().sum();
    if pixels == 0 {
        let (value, expected) = ("0".to_owned(), "at least one in an image that can be read");
        return Err(Error::InvalidSetting { name: "number of held-out pixels with a class", value, expected });
    }
    Ok(Scores { confusion, cross_entropy: entropy / pixels as f64 })
}

/// The class that a pixel counts as. If a logit is NaN, nothing is predicted: the pixel counts as a class other than the true one, so
/// that a diverging model is not right about its first class.
fn counted_as(predicted: usize, truth: usize, classes: usize, logit: impl Fn(usize) -> f64) -> usize {
    match predicted == truth && (0..classes).any(|class| logit(class).is_nan()) {
        true => (truth + 1) % classes,
        false => predicted,
    }
}

/// The class with the largest value for each pixel of a row `[classes, width]`; the first if several are equal.
pub fn largest(values: &[f32], classes: usize, ids: &mut Vec<u16>) {
    let width = values.len() / classes;
    let best = |x| {
        (1..classes)
            .fold(0, |best, class| if values[class * width + x] > values[best * width + x] { class } else { best })
    };
    ids.clear();
    ids.extend((0..width).map(|x| best(x) as u16));
}

/// Rows of masks. The masks of a row of tiles are read at once. Their ids were checked with the tiles.
struct MaskRows<'a> {
    set: &'a TileSet,
    image: usize,
    rows: Range<usize>,
    ids: Vec<i64>,
}

impl MaskRows<'_> {
    fn row(&mut self, image: usize, y: usize, width: usize) -> Result<&[i64], kiln_data::Error> {
        if self.image != image || !self.rows.contains(&y) {
            let grid = self.set.grid(image);
            let tops = (0..grid.rows()).map(|row| grid.area(row * grid.columns()).top);
            let rows = y..tops.chain([grid.size()[0]]).find(|top| *top > y).unwrap_or(y + 1);
            let ids = self.set.mask_rows(image, rows.clone())?;
            self.ids = ids.iter().flat_map(ClassIds::iter).collect();
            (self.image, self.rows) = (image, rows);
        }
        Ok(&self.ids[(y - self.rows.start) * width..][..width])
    }
}

#[cfg(test)]
mod tests {
    use super::{counted_as, largest};

    #[test]
    fn a_pixel_with_nan_is_not_right() {
        const NAN: f32 = f32::NAN;
        // [classes, width]: three classes of four pixels, whose true class is the first.
        let values = [2.0, NAN, 2.0, NAN, 1.0, 0.0, NAN, NAN, 0.0, 0.0, 0.0, NAN];
        let mut ids = vec![];
        largest(&values, 3, &mut ids);
        assert_eq!(ids, [0; 4], "nothing is larger than NaN");
        let counted = |x: usize, truth| counted_as(0, truth, 3, |class| f64::from(values[class * 4 + x]));
        assert_eq!([0, 1, 2, 3].map(|x| counted(x, 0)), [0, 1, 1, 1]);
        assert_eq!([0, 1, 2, 3].map(|x| counted(x, 2)), [0; 4], "wrong as it was");
    }
}
