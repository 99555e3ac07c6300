//! Products of small matrices by a whole warp, and the loads and stores of their fragments.
//!
//! `mma`, `ldmatrix` and `stmatrix` have the layout that the PTX manual gives (section "Matrix fragments for
//! mma.m16n8k16" and its neighbours): in an 8 x 8 tile, lane `l` holds the elements `(l / 4, 2 (l % 4))` and
//! `(l / 4, 2 (l % 4) + 1)`. For `wmma` the manual leaves the layout open; here the element `i` of a matrix, counted row
//! after row, is in lane `i % 32` of register `i / 32`. 16-bit operands fill both halves of a lane with neighbours;
//! 16-bit accumulators hold in register `j` what f32 accumulators hold in the registers `2 j` and `2 j + 1`, so that
//! converting a fragment register by register keeps its elements in place.

mod fragment;
mod multiply;
mod rows;
mod together;
mod wmma;

pub(crate) use fragment::{Fragment, load as load_fragment, store as store_fragment};
pub(crate) use multiply::{Mma, Shape, mma};
pub(crate) use rows::{load as load_rows, store as store_rows};
pub(crate) use wmma::wmma;
