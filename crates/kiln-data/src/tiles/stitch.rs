//! Merges the predictions for the tiles of an image.

use burn::tensor::Tensor;

use crate::error::Error;

use super::blend::Blend;
use super::grid::{TileArea, TileGrid};

/// Merges the predictions for the tiles of an image, row by row. Where tiles overlap, the result is their mean, weighted by
/// [`Blend`].
///
/// Tiles must be added in the order of their grid. A row is written as soon as no later tile touches it, so that one row of
/// tiles is held ([`bytes`](Self::bytes)), whatever the height of the image.
///
/// The mean is updated with each tile (West 1979), in f32 with weights in f64, and equal values are not changed: **where all
/// predictions for a pixel are equal, the result is equal to them bit for bit**. It is outside of their range by rounding
/// at most.
///
/// Source of the update: D. H. D. West, "Updating mean and variance estimates: an improved method", CACM 22 (9), 1979.
///
/// ```
/// use kiln_data::{Blend, Stitch, TileGrid};
///
/// let grid = TileGrid::new([5, 4], 4, 2)?;
/// let mut rows = vec![];
/// let mut stitch = Stitch::new(grid, 1, Blend::Linear, |y, row: &[f32]| {
///     rows.push((y, row.to_vec()));
///     Ok(())
/// })?;
/// stitch.add(0, &[1.0; 16])?; // rows 0 to 3
/// stitch.add(1, &[2.0; 16])?; // rows 1 to 4
/// stitch.finish()?;
/// assert_eq!((rows.len(), &rows[0], &rows[4]), (5, &(0, vec![1.0; 4]), &(4, vec![2.0; 4])));
/// # Ok::<(), kiln_data::Error>(())
/// ```
#[derive(Debug)]
pub struct Stitch<F> {
    grid: TileGrid,
    classes: usize,
    write: F,
    /// The next tile.
    next: usize,
    /// The rows `y` of `[classes, width]` that are not written yet, each at `y` modulo their number.
    rows: Vec<f32>,
    weights: Weights,
}

impl<F: FnMut(usize, &[f32]) -> Result<(), Error>> Stitch<F> {
    /// A stitch of predictions `[classes, tile, tile]` for the tiles of `grid`. `write` gets the number of each row, from 0 on, and its
    /// values `[classes, width]`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for no classes.
    pub fn new(grid: TileGrid, classes: usize, blend: Blend, write: F) -> Result<Self, Error> {
        if classes == 0 {
            return Err(Error::setting("classes", "0", "at least 1"));
        }
        let rows = vec![0.0; classes * grid.size()[1] * held_rows(&grid)];
        Ok(Self { grid, classes, write, next: 0, rows, weights: Weights::new(&grid, blend) })
    }

    /// Bytes that it holds from the start: rows of predictions and sums of weights.
    pub fn bytes(&self) -> u64 {
        let Weights { window, above, across, left } = &self.weights;
        let sums = window.len() + above.len() + across.len() + left.len();
        (self.rows.len() * size_of::<f32>() + sums * size_of::<f64>()) as u64
    }

    /// Adds the prediction for tile `tile` of the grid, `[classes, tile, tile]`. Padding is ignored.
    ///
    /// # Errors
    /// [`Error::TileOrder`] for a tile that is not the next, [`Error::InvalidSetting`] for another number of values; both
    /// leave the stitch unchanged. After an error of the closure that writes rows the stitch cannot continue: rows are lost.
    pub fn add(&mut self, tile: usize, prediction: &[f32]) -> Result<(), Error> {
        if tile != self.next || tile >= self.grid.tiles() {
            return Err(Error::TileOrder { tile, expected: self.next, tiles: self.grid.tiles() });
        }
        let side = self.grid.tile();
        if prediction.len() != self.classes * side * side {
            let value = format!("{} values for {} classes and tiles of {side}", prediction.len(), self.classes);
            return Err(Error::setting("prediction", value, "classes * tile * tile values"));
        }
        let area = self.grid.area(tile);
        let (width, held) = (self.grid.size()[1], held_rows(&self.grid));
        let mut shares = vec![0.0; area.width];
        for y in 0..area.height {
            self.weights.shares(&area, y, &mut shares);
            let row = (area.top + y) % held * self.classes * width;
            for class in 0..self.classes {
                let means = &mut self.rows[row + class * width + area.left..][..area.width];
                let values = &prediction[(class * side + y) * side..][..area.width];
                for ((mean, value), share) in means.iter_mut().zip(values).zip(&shares) {
                    *mean = updated(*mean, *value, *share);
                }
            }
        }
        self.weights.added(&area);
        self.next += 1;
        if self.next.is_multiple_of(self.grid.columns()) {
            self.weights.end_of_row(&area);
            let end = match self.next < self.grid.tiles() {
                true => self.grid.area(self.next).top,
                false => self.grid.size()[0],
            };
            for y in area.top..end {
                let row = y % held * self.classes * width;
                (self.write)(y, &self.rows[row..row + self.classes * width])?;
            }
        }
        Ok(())
    }

    /// Adds predictions `[B, classes, tile, tile]` for the `B` tiles `ids` of a [`TileBatch`](crate::TileBatch), with one
    /// read from the device. A tile that the policy for bad samples skipped or replaced is an error here.
    ///
    /// # Errors
    /// Those of [`add`](Self::add), before anything is added; [`Error::InvalidSetting`] for another shape; [`Error::Device`]
    /// when the predictions cannot be read.
    pub fn add_batch(&mut self, ids: &[usize], predictions: Tensor<4>) -> Result<(), Error> {
        let [tiles, classes, height, width] = predictions.dims();
        let side = self.grid.tile();
        if [tiles, classes, height, width] != [ids.len(), self.classes, side, side] {
            let value = format!(
                "[{tiles}, {classes}, {height}, {width}] for {} tiles of {side} and {} classes",
                ids.len(),
                self.classes
            );
            return Err(Error::InvalidSetting { name: "prediction", value, expected: "[B, classes, tile, tile]" });
        }
        if let Some((expected, tile)) = (self.next..).zip(ids).find(|(expected, tile)| expected != *tile) {
            return Err(Error::TileOrder { tile: *tile, expected, tiles: self.grid.tiles() });
        }
        let data = predictions.try_into_data().map_err(|e| Error::Device { reason: e.to_string() })?;
        let values =
            data.convert::<f32>().try_into_vec::<f32>().map_err(|e| Error::Device { reason: e.to_string() })?;
        let mut tiles = ids.iter().zip(values.chunks_exact(classes * side * side));
        tiles.try_for_each(|(tile, prediction)| self.add(*tile, prediction))
    }

    /// Ends the image. All of its rows were written.
    ///
    /// # Errors
    /// [`Error::MissingTile`] when a tile was not added.
    pub fn finish(self) -> Result<(), Error> {
        match (self.next, self.grid.tiles()) {
            (next, tiles) if next < tiles => Err(Error::MissingTile { tile: next, tiles }),
            _ => Ok(()),
        }
    }
}

/// The whole image `[classes, height, width]` from predictions `[classes, tile, tile]` for all tiles of `grid` in its order:
/// a [`Stitch`] that keeps its rows in memory.
///
/// # Errors
/// Those of [`Stitch::new`], [`Stitch::add`] and [`Stitch::finish`].
pub fn stitch(
    grid: TileGrid,
    classes: usize,
    blend: Blend,
    predictions: impl IntoIterator<Item = impl AsRef<[f32]>>,
) -> Result<Vec<f32>, Error> {
    let [height, width] = grid.size();
    let mut image = vec![0.0; classes * height * width];
    let write = |y: usize, row: &[f32]| {
        for (class, row) in row.chunks_exact(width).enumerate() {
            image[(class * height + y) * width..][..width].copy_from_slice(row);
        }
        Ok(())
    };
    let mut stitch = Stitch::new(grid, classes, blend, write)?;
    for (tile, prediction) in predictions.into_iter().enumerate() {
        stitch.add(tile, prediction.as_ref())?;
    }
    stitch.finish()?;
    Ok(image)
}

/// Rows of the image that a row of tiles touches.
fn held_rows(grid: &TileGrid) -> usize {
    grid.tile().min(grid.size()[0])
}

/// The mean with one more value, which has this share in it. The first value has the share 1 and replaces a value of an
/// older row. Equal values, infinite ones too, are not changed.
fn updated(mean: f32, value: f32, share: f32) -> f32 {
    match share == 1.0 || mean == value {
        true => value,
        false => mean * (1.0 - share) + value * share,
    }
}

/// The weights of the predictions so far for each pixel. The weight of a tile is the product of a window along its rows
/// and one along its columns, and tiles form a grid, so that sums along the two sides of the image are enough.
#[derive(Debug)]
struct Weights {
    window: Vec<f64>,
    /// For each row of pixels: the sum of the windows of the complete rows of tiles.
    above: Vec<f64>,
    /// For each column: the sum of the windows of all tiles in a row, and of the tiles added so far.
    across: Vec<f64>,
    left: Vec<f64>,
}

impl Weights {
    fn new(grid: &TileGrid, blend: Blend) -> Self {
        let [height, width] = grid.size();
        let mut weights = Self {
            window: blend.window(grid.tile()),
            above: vec![0.0; height],
            across: vec![0.0; width],
            left: vec![0.0; width],
        };
        for column in 0..grid.columns() {
            weights.added(&grid.area(column));
        }
        std::mem::swap(&mut weights.across, &mut weights.left);
        weights
    }

    /// The share of row `y` of a tile at `area` in the weights of its pixels, its own among them.
    fn shares(&self, area: &TileArea, y: usize, shares: &mut [f32]) {
        let (above, row) = (self.above[area.top + y], self.window[y]);
        for (x, share) in shares.iter_mut().enumerate() {
            let (column, at) = (self.window[x], area.left + x);
            *share = (row * column / (above * self.across[at] + row * (self.left[at] + column))) as f32;
        }
    }

    fn added(&mut self, area: &TileArea) {
        let sums = &mut self.left[area.left..area.left + area.width];
        sums.iter_mut().zip(&self.window).for_each(|(sum, weight)| *sum += weight);
    }

    fn end_of_row(&mut self, area: &TileArea) {
        self.left.fill(0.0);
        let sums = &mut self.above[area.top..area.top + area.height];
        sums.iter_mut().zip(&self.window).for_each(|(sum, weight)| *sum += weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::RngExt;

    use crate::order::sample_rng;

    const BLENDS: [Blend; 3] = [Blend::Linear, Blend::RaisedCosine, Blend::Crop { margin: 3 }];

    fn grids() -> impl Strategy<Value = TileGrid> {
        (1usize..40, 1usize..40, 1usize..20).prop_flat_map(|(height, width, tile)| {
            (0..tile).prop_map(move |overlap| TileGrid::new([height, width], tile, overlap).unwrap())
        })
    }

    fn predictions(grid: &TileGrid, classes: usize, seed: u64) -> Vec<Vec<f32>> {
        let values = classes * grid.tile() * grid.tile();
        let random = |tile| {
            let mut rng = sample_rng(seed, 0, tile);
            (0..values).map(|_| rng.random_range(-10.0f32..10.0)).collect()
        };
        (0..grid.tiles() as u64).map(random).collect()
    }

    /// Weighted sums of all tiles over sums of all weights, in f64.
    fn reference(grid: &TileGrid, classes: usize, blend: Blend, predictions: &[Vec<f32>]) -> Vec<f64> {
        let ([height, width], side, window) = (grid.size(), grid.tile(), blend.window(grid.tile()));
        let (mut sums, mut weights) = (vec![0.0; classes * height * width], vec![0.0; height * width]);
        for (tile, prediction) in predictions.iter().enumerate() {
            let area = grid.area(tile);
            for y in 0..area.height {
                for x in 0..area.width {
                    let (at, weight) = ((area.top + y) * width + area.left + x, window[y] * window[x]);
                    weights[at] += weight;
                    for class in 0..classes {
                        let value = f64::from(prediction[(class * side + y) * side + x]);
                        sums[class * height * width + at] += weight * value;
                    }
                }
            }
        }
        sums.iter().enumerate().map(|(at, sum)| sum / weights[at % (height * width)]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_result_is_the_weighted_mean(grid in grids(), classes in 1usize..4, seed: u64) {
            for blend in BLENDS {
                let predictions = predictions(&grid, classes, seed);
                let expected = reference(&grid, classes, blend, &predictions);
                let got = stitch(grid, classes, blend, &predictions).unwrap();
                prop_assert_eq!(got.len(), expected.len());
                // Up to 400 tiles cover a pixel, each value up to 10 and rounded to 24 bits.
                let off = got.iter().zip(&expected).map(|(got, expected)| (f64::from(*got) - expected).abs());
                prop_assert!(off.fold(0.0, f64::max) < 1e-4);
            }
        }

        #[test]
        fn a_constant_comes_out_bit_for_bit(grid in grids(), value: f32) {
            for blend in BLENDS {
                let tile = vec![value; grid.tile() * grid.tile()];
                let image = stitch(grid, 1, blend, vec![tile; grid.tiles()]).unwrap();
                prop_assert!(image.iter().all(|pixel| pixel.to_bits() == value.to_bits() || value.is_nan()));
            }
        }

        #[test]
        fn rows_are_written_once_in_order_and_few_are_held(height in 1usize..300, width in 1usize..30, tile in 2usize..20) {
            let grid = TileGrid::new([height, width], tile, tile / 2).unwrap();
            let mut rows = vec![];
            let write = |y, row: &[f32]| {
                rows.push((y, row.len()));
                Ok(())
            };
            let mut stitch = Stitch::new(grid, 2, Blend::Linear, write).unwrap();
            prop_assert_eq!(stitch.bytes(), (4 * 2 * width * tile.min(height) + 8 * (tile + height + 2 * width)) as u64);
            for (tile, prediction) in predictions(&grid, 2, 0).iter().enumerate() {
                stitch.add(tile, prediction).unwrap();
            }
            stitch.finish().unwrap();
            prop_assert_eq!(rows, (0..height).map(|y| (y, 2 * width)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_cropped_counts_only_where_there_is_nothing_else() {
        // Tiles at 0, 2 and 4 of 10 columns, 4 wide: margins of 1 keep columns 1, 2, then 3, 4, and 5, 6, ..
        let grid = TileGrid::new([4, 10], 4, 2).unwrap();
        let tiles = (1..=grid.tiles()).map(|tile| vec![tile as f32 / 3.0; 16]);
        let image = stitch(grid, 1, Blend::Crop { margin: 1 }, tiles).unwrap();
        let tile = [1, 1, 1, 2, 2, 3, 3, 4, 4, 4].map(|tile| tile as f32 / 3.0);
        assert!(image.chunks_exact(10).all(|row| row == tile), "{image:?}");
    }

    #[test]
    fn an_infinite_logit_stays_one() {
        let grid = TileGrid::new([1, 6], 4, 2).unwrap();
        let tile = |value: f32| vec![value; 16];
        for (a, b) in [(f32::NEG_INFINITY, f32::NEG_INFINITY), (f32::NEG_INFINITY, 1.0), (1.0, f32::NEG_INFINITY)] {
            let image = stitch(grid, 1, Blend::RaisedCosine, [tile(a), tile(b)]).unwrap();
            assert_eq!(image, [a, a, f32::NEG_INFINITY, f32::NEG_INFINITY, b, b]);
        }
    }

    #[test]
    fn tiles_out_of_order_and_missing_ones_are_named() {
        let grid = TileGrid::new([4, 8], 4, 0).unwrap();
        let mut stitch = Stitch::new(grid, 1, Blend::Linear, |_, _: &[f32]| Ok(())).unwrap();
        let text = |result: Result<(), Error>| result.unwrap_err().to_string();
        let order = "tile 1 of 2 was added, expected tile 0: tiles are added in the order of their grid";
        assert_eq!(text(stitch.add(1, &[0.0; 16])), order);
        let values = "prediction is 15 values for 1 classes and tiles of 4, expected classes * tile * tile values";
        assert_eq!(text(stitch.add(0, &[0.0; 15])), values);
        stitch.add(0, &[0.0; 16]).unwrap();
        assert_eq!(
            text(stitch.add(0, &[0.0; 16])),
            order.replace('1', "0").replace("expected tile 0", "expected tile 1")
        );
        assert_eq!(text(stitch.finish()), "tile 1 of 2 is missing");
        assert!(matches!(
            super::stitch(grid, 1, Blend::Linear, vec![[0.0; 16]; 3]),
            Err(Error::TileOrder { tile: 2, .. })
        ));
        assert!(matches!(super::stitch(grid, 0, Blend::Linear, [[0.0; 0]]), Err(Error::InvalidSetting { .. })));
    }

    #[test]
    fn an_error_of_the_writer_is_returned() {
        let grid = TileGrid::new([4, 4], 4, 0).unwrap();
        let full = || Error::Write { path: "out.tif".into(), reason: std::io::ErrorKind::StorageFull.into() };
        let mut stitch =
            Stitch::new(grid, 1, Blend::Linear, |y, _: &[f32]| if y == 2 { Err(full()) } else { Ok(()) }).unwrap();
        assert!(matches!(stitch.add(0, &[0.0; 16]), Err(Error::Write { .. })));
    }
}
