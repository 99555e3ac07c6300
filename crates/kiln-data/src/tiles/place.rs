//! Where the pixels of a tile lie after it is turned.

use crate::decode::Orientation;

use super::grid::TileArea;

/// The position of each pixel of a patch (the part of a tile that is in its image) in a turned tile: an affine function of
/// row and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    side: usize,
    first: usize,
    per_row: isize,
    per_column: isize,
    /// The patch in the turned tile.
    pub(super) valid: TileArea,
}

impl Placement {
    /// For a patch of `height` rows and `width` columns in the top left corner of a tile of `side` pixels, which is then
    /// turned by `turn`.
    pub(super) fn new(turn: Orientation, side: usize, height: usize, width: usize) -> Self {
        let [row, column] = if turn.transpose { [1, side] } else { [side, 1] };
        let per = |stride: usize, flip: bool| if flip { -(stride as isize) } else { stride as isize };
        let end = |stride: usize, flip: bool| if flip { (side - 1) * stride } else { 0 };
        let span = |length: usize, flip: bool| (if flip { side - length } else { 0 }, length);
        let (rows, columns) = (span(height, turn.flip_rows), span(width, turn.flip_columns));
        let ((top, height), (left, width)) = if turn.transpose { (columns, rows) } else { (rows, columns) };
        Self {
            side,
            first: end(row, turn.flip_rows) + end(column, turn.flip_columns),
            per_row: per(row, turn.flip_rows),
            per_column: per(column, turn.flip_columns),
            valid: TileArea { top, left, height, width },
        }
    }

    /// Copies a patch `[height, width, bands]` into a tile `[bands, side, side]` and converts each sample.
    pub(super) fn copy<T: Copy, O>(
        &self,
        patch: &[T],
        [width, bands]: [usize; 2],
        tile: &mut [O],
        convert: impl Fn(T) -> O,
    ) {
        for (band, plane) in tile.chunks_exact_mut(self.side * self.side).enumerate() {
            for (y, row) in patch.chunks_exact(width * bands).enumerate() {
                let mut at = self.first.wrapping_add_signed(y as isize * self.per_row);
                for pixel in row.chunks_exact(bands) {
                    plane[at] = convert(pixel[band]);
                    at = at.wrapping_add_signed(self.per_column);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    fn turned(turn: Orientation, side: usize, patch: &[u8], width: usize) -> (Vec<u8>, TileArea) {
        let place = Placement::new(turn, side, patch.len() / width, width);
        let mut tile = vec![0; side * side];
        place.copy(patch, [width, 1], &mut tile, |sample| sample);
        (tile, place.valid)
    }

    proptest! {
        /// The definition of `Orientation`, with the patch as a file that ends in zeros.
        #[test]
        fn pixels_lie_where_their_orientation_says(
            side in 1usize..9, height in 1usize..9, width in 1usize..9, exif in 1u8..=8,
        ) {
            let (height, width) = (height.min(side), width.min(side));
            let turn = Orientation::from_exif(exif).unwrap();
            let patch: Vec<u8> = (1..=(height * width) as u8).collect();
            let (tile, valid) = turned(turn, side, &patch, width);
            for y in 0..side {
                for x in 0..side {
                    let (a, b) = if turn.transpose { (x, y) } else { (y, x) };
                    let a = if turn.flip_rows { side - 1 - a } else { a };
                    let b = if turn.flip_columns { side - 1 - b } else { b };
                    let inside = a < height && b < width;
                    prop_assert_eq!(tile[y * side + x], if inside { patch[a * width + b] } else { 0 });
                    let rows = valid.top..valid.top + valid.height;
                    prop_assert_eq!(inside, rows.contains(&y) && (valid.left..valid.left + valid.width).contains(&x));
                }
            }
        }
    }

    #[test]
    fn there_are_eight_symmetries() {
        let turns = (1..=8).map(|exif| turned(Orientation::from_exif(exif).unwrap(), 2, &[1, 2, 3, 4], 2).0);
        assert_eq!(turns.collect::<BTreeSet<_>>().len(), 8);
    }

    #[test]
    fn bands_become_planes() {
        let mut tile = [0; 8];
        Placement::new(Orientation::default(), 2, 1, 2).copy(&[1u8, 2, 3, 4], [2, 2], &mut tile, i32::from);
        assert_eq!(tile, [1, 3, 0, 0, 2, 4, 0, 0]);
    }
}
