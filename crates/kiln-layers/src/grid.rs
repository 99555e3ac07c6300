//! How the kernels in CubeCL share the rows and columns of a matrix.

/// The most cubes (thread blocks) of a launch: enough for all multiprocessors of large GPUs.
const CUBES: usize = 256;
/// Units of a cube.
pub(crate) const UNITS: usize = 512;
/// The most units side by side in a row.
const LANES: usize = 32;

/// The cubes of a launch: each takes some columns of a group of rows.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "cube"),
    allow(dead_code, reason = "without kernels in CubeCL only their memory is asked for")
)]
pub(crate) struct Grid {
    pub(crate) rows: usize,
    /// Values that a unit reads at once.
    pub(crate) vector: usize,
    /// Vectors of a row.
    pub(crate) width: usize,
    /// Units of a cube along a row.
    pub(crate) lanes: usize,
    /// Rows that a cube takes at a time.
    pub(crate) height: usize,
    /// Cubes along a row.
    pub(crate) blocks: usize,
    /// Groups of rows, and the rows of each but the last.
    pub(crate) groups: usize,
    pub(crate) share: usize,
}

impl Grid {
    /// Of a matrix that has values.
    pub(crate) fn of([rows, columns]: [usize; 2]) -> Self {
        let vector = [4, 2].into_iter().find(|size| columns.is_multiple_of(*size)).unwrap_or(1);
        let width = columns / vector;
        let lanes = width.next_power_of_two().min(LANES);
        let (height, blocks) = (UNITS / lanes, width.div_ceil(lanes));
        let groups = (CUBES / blocks).clamp(1, rows.div_ceil(height).max(1));
        let share = rows.div_ceil(groups).max(1);
        Self { rows, vector, width, lanes, height, blocks, groups: rows.div_ceil(share), share }
    }

    #[cfg_attr(not(feature = "cube"), allow(dead_code, reason = "see the fields"))]
    pub(crate) fn columns(&self) -> usize {
        self.width * self.vector
    }
}

#[cfg(test)]
mod tests {
    use super::{CUBES, Grid, UNITS};

    #[test]
    fn each_row_and_column_is_in_one_cube() {
        for rows in [1, 2, 15, 16, 17, 300, 4097, 802_816] {
            for columns in [1, 2, 3, 4, 19, 64, 127, 128, 131, 2048, 50_257] {
                let grid = Grid::of([rows, columns]);
                assert_eq!(grid.columns(), columns);
                assert_eq!(grid.lanes * grid.height, UNITS);
                assert!(grid.blocks * grid.lanes >= grid.width && (grid.blocks - 1) * grid.lanes < grid.width);
                assert!(grid.groups * grid.share >= rows && (grid.groups - 1) * grid.share < rows, "{grid:?}");
                assert!(grid.groups == 1 || grid.groups * grid.blocks <= CUBES, "{grid:?}");
            }
        }
    }
}
