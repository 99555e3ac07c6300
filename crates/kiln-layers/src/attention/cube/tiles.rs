//! Tiles of rows and columns in shared memory.
//!
//! A plane (a warp) takes 16 rows. Rows and columns are queries and keys, or keys and queries. Rows in shared memory are longer than their
//! values, so that units that read the same columns of several rows at once read from different banks.

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearView;

use crate::attention::cost::{PLANE, TILE};

/// Columns that are in shared memory at a time.
pub(super) const COLUMNS: usize = 32;
/// Values of a vector of scores.
pub(super) const QUAD: usize = 4;
/// Vectors of a row of scores that belong to one unit: every second one.
pub(super) const SHARE: usize = COLUMNS / QUAD / 2;
/// Values between the beginnings of rows of scores in shared memory.
pub(super) const PITCH: usize = COLUMNS + PADDING;
/// Values in shared memory that follow those of a row. They keep the beginnings of rows at multiples of 16 bytes.
const PADDING: usize = 8;
/// Vectors of the scores of a plane in shared memory.
pub(super) const OF_PLANE: usize = TILE * PITCH / QUAD;

/// Four values.
pub(super) type Quad<E> = Vector<E, Const<QUAD>>;

/// What is the same in all cubes of a launch and known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) causal: bool,
    /// Whether a query sees only some of the newest keys.
    pub(super) windowed: bool,
    /// Values of a row.
    pub(super) depth: usize,
    pub(super) planes: usize,
    /// Columns of a factor's tile on tensor cores; 0 where each unit multiplies by itself.
    pub(super) inner: usize,
}

impl Form {
    pub(super) fn units(self) -> usize {
        self.planes * PLANE
    }

    /// Rows of a cube.
    pub(super) fn rows(self) -> usize {
        self.planes * TILE
    }

    /// Vectors between the beginnings of rows in shared memory.
    pub(super) fn pitch(self, vector: usize) -> usize {
        (self.depth + PADDING) / vector
    }
}

/// The place of a unit's vector of the scores of its row, and the first of its columns.
#[cube]
pub(super) fn share(unit: usize, #[comptime] index: usize) -> (usize, usize) {
    let vector = 2 * index + unit % 2;
    ((unit / 2) * (PITCH / QUAD) + vector, vector * QUAD)
}

/// Where rows of heads lie in a tensor, in vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Place {
    pub(super) base: usize,
    pub(super) sample: usize,
    pub(super) head: usize,
    pub(super) row: usize,
}

#[cube]
impl Place {
    /// The first vector of the rows of a head.
    pub(super) fn of_head(&self, sample: usize, head: usize) -> usize {
        self.base + sample * self.sample + head * self.head
    }
}

/// Copies `count` rows of a head from `first` on to shared memory. Rows from `end` on are zeros.
#[cube]
pub(super) fn load<E: Float, S: Float, N: Size>(
    from: &LinearView<'_, Vector<E, N>>,
    to: &mut Shared<[Vector<S, N>]>,
    place: &Place,
    sample: usize,
    head: usize,
    first: usize,
    end: usize,
    #[comptime] count: usize,
    #[comptime] form: Form,
) {
    let vector = N::value();
    let width = comptime!(form.depth / vector);
    let pitch = comptime!(form.pitch(vector));
    let start = place.of_head(sample, head);
    let mut at = UNIT_POS as usize;
    while at < count * width {
        let row = first + at / width;
        let mut value = Vector::<E, N>::new(E::from_int(0));
        if row < end {
            value = from.read(start + row * place.row + at % width);
        }
        to[(at / width) * pitch + at % width] = Vector::cast_from(value);
        at += comptime!(form.units());
    }
}

/// The number of keys, from the first on, that queries up to `last` see.
#[cube]
pub(super) fn seen(last: usize, time: usize, keys: usize, #[comptime] causal: bool) -> usize {
    let mut seen = keys;
    if comptime!(causal) {
        let position = last + 1 + keys;
        seen = min(keys, select(position > time, position - time, 0usize));
    }
    seen
}
