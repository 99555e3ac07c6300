//! How images are cut into tiles.

use serde::{Deserialize, Serialize};

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
