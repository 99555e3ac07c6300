//! The grid of tiles over an image, and the settings of it.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How images are cut into tiles, and the limit of the bytes that reading one tile takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TileConfig {
    /// Rows and columns of a tile, 1 to 65536.
    pub tile: usize,
    /// The least number of rows or columns that neighbours share, below `tile`.
    pub overlap: usize,
    /// Bytes that reading one tile may take.
    pub limit: u64,
}

impl TileConfig {
    /// Tiles of `tile` rows and columns that do not overlap, each read within 512 MiB.
    pub const fn new(tile: usize) -> Self {
        Self { tile, overlap: 0, limit: 512 << 20 }
    }

    /// Sets the least number of rows or columns that neighbours share.
    #[must_use]
    pub const fn with_overlap(self, overlap: usize) -> Self {
        Self { overlap, ..self }
    }

    /// Sets the bytes that reading one tile may take.
    #[must_use]
    pub const fn with_limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }
}

/// A rectangle of whole pixels: the position of a tile in an image, or the part of a tile without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileArea {
    /// The first row.
    pub top: usize,
    /// The first column.
    pub left: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// Square tiles that cover an image, row by row from the top left: a pure function of three sizes.
///
/// Tiles lie `tile - overlap` pixels apart. The last one of a row or column is shifted inwards, so that it stays within the
/// image and overlaps more. A side of the image that is shorter than a tile has one tile, which is cut to this side.
///
/// ```
/// use kiln_data::TileGrid;
///
/// let grid = TileGrid::new([600, 1000], 512, 64)?;
/// assert_eq!((grid.rows(), grid.columns(), grid.tiles()), (2, 3, 6));
/// let last = grid.area(5);
/// assert_eq!((last.top, last.left, last.height, last.width), (88, 488, 512, 512));
/// # Ok::<(), kiln_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileGrid {
    size: [usize; 2],
    tile: usize,
    overlap: usize,
}

/// The largest tile: no count of bytes overflows.
const MAX_TILE: usize = 1 << 16;

impl TileGrid {
    /// Tiles of `tile` rows and columns over an image of `size`, `[height, width]`; neighbours share at least `overlap`
    /// rows or columns.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for an image without pixels, a tile that is not of 1 to 65536 pixels a side, and an
    /// overlap that is not below the tile.
    pub fn new(size: [usize; 2], tile: usize, overlap: usize) -> Result<Self, Error> {
        let refuse = |field, value, expected| Err(Error::InvalidSetting { name: field, value, expected });
        if size.contains(&0) {
            return refuse("image size", format!("{}x{}", size[0], size[1]), "at least 1x1");
        }
        if !(1..=MAX_TILE).contains(&tile) {
            return refuse("tile", tile.to_string(), "1 to 65536 pixels a side");
        }
        if overlap >= tile {
            return refuse("overlap", format!("{overlap}, with tiles of {tile}"), "less than a tile");
        }
        Ok(Self { size, tile, overlap })
    }

    /// `[height, width]` of the image.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Rows and columns of a tile.
    pub fn tile(&self) -> usize {
        self.tile
    }

    /// The least number of rows or columns that neighbours share.
    pub fn overlap(&self) -> usize {
        self.overlap
    }

    /// Rows of tiles.
    pub fn rows(&self) -> usize {
        self.along(self.size[0])
    }

    /// Tiles in a row.
    pub fn columns(&self) -> usize {
        self.along(self.size[1])
    }

    /// Number of tiles.
    pub fn tiles(&self) -> usize {
        self.rows() * self.columns()
    }

    /// The part of the image in tile `index`; smaller than a tile if the image is.
    ///
    /// # Panics
    /// When `index` is not below [`tiles`](Self::tiles).
    pub fn area(&self, index: usize) -> TileArea {
        assert!(index < self.tiles(), "tile {index}, expected below {}", self.tiles());
        let [top, left] = [index / self.columns(), index % self.columns()];
        let [height, width] = self.size.map(|length| length.min(self.tile));
        TileArea { top: self.first(top, self.size[0]), left: self.first(left, self.size[1]), height, width }
    }

    /// The first pixel of a tile; the last tile of an axis is shifted inwards.
    fn first(&self, position: usize, length: usize) -> usize {
        (position * (self.tile - self.overlap)).min(length.saturating_sub(self.tile))
    }

    fn along(&self, length: usize) -> usize {
        length.saturating_sub(self.tile).div_ceil(self.tile - self.overlap) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grids() -> impl Strategy<Value = TileGrid> {
        (1usize..200, 1usize..200, 1usize..80).prop_flat_map(|(height, width, tile)| {
            (0..tile).prop_map(move |overlap| TileGrid::new([height, width], tile, overlap).unwrap())
        })
    }

    proptest! {
        #[test]
        fn tiles_cover_the_image_stay_inside_and_overlap_enough(grid in grids()) {
            let [height, width] = grid.size();
            let mut covered = vec![false; height * width];
            for index in 0..grid.tiles() {
                let area = grid.area(index);
                prop_assert!(area.top + area.height <= height && area.left + area.width <= width);
                prop_assert_eq!((area.height, area.width), (height.min(grid.tile()), width.min(grid.tile())));
                for y in area.top..area.top + area.height {
                    covered[y * width + area.left..][..area.width].fill(true);
                }
                if (index + 1) % grid.columns() != 0 {
                    let right = grid.area(index + 1);
                    prop_assert!(right.top == area.top && right.left > area.left);
                    prop_assert!(right.left + grid.overlap() <= area.left + area.width);
                }
                if index + grid.columns() < grid.tiles() {
                    let below = grid.area(index + grid.columns());
                    prop_assert!(below.left == area.left && below.top > area.top);
                    prop_assert!(below.top + grid.overlap() <= area.top + area.height);
                }
            }
            prop_assert!(covered.iter().all(|pixel| *pixel));
        }

        /// One tile less along an axis would leave pixels out.
        #[test]
        fn there_are_no_more_tiles_than_needed(grid in grids()) {
            let step = grid.tile() - grid.overlap();
            for (count, length) in [(grid.rows(), grid.size()[0]), (grid.columns(), grid.size()[1])] {
                prop_assert!(count == 1 || (count - 2) * step + grid.tile() < length);
                prop_assert!((count - 1) * step + grid.tile() >= length);
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (size, tile, overlap, text) in [
            ([0, 5], 4, 0, "image size is 0x5, expected at least 1x1"),
            ([5, 5], 0, 0, "tile is 0, expected 1 to 65536 pixels a side"),
            ([5, 5], 65537, 0, "tile is 65537, expected 1 to 65536 pixels a side"),
            ([5, 5], 4, 4, "overlap is 4, with tiles of 4, expected less than a tile"),
        ] {
            assert_eq!(TileGrid::new(size, tile, overlap).unwrap_err().to_string(), text);
        }
    }
}
