//! The operations of the interpreter: each works on one warp's registers and the lanes that run.
#![allow(clippy::needless_range_loop, reason = "a lane or an element is the same index in several arrays")]

mod access;
mod atomic;
mod compare;
mod convert;
mod directed;
mod exchange;
mod float;
mod format;
mod half;
mod integer;
mod lanes;
mod locate;
mod mask;
mod matrix;
mod pair;
mod races;
mod state;
mod trace;

pub(crate) use access::{Access, access};
pub(crate) use atomic::atomic;
pub(crate) use compare::{predicate_logic, select, test};
pub(crate) use convert::{
    Conversion, halves, pack as pack_conversion, quick as quick_conversion, slow as slow_conversion, to_pair,
};
pub(crate) use exchange::{active, match_any, reduce, shuffle, trap, vote};
pub(crate) use float::{Modes, Rounding, arithmetic as float_arithmetic};
pub(crate) use half::arithmetic as half_arithmetic;
pub(crate) use integer::{arithmetic as integer_arithmetic, carry, carrying, field, logic};
pub(crate) use locate::{LOCAL_WINDOW, Place, SHARED_WINDOW};
pub(crate) use matrix::{Fragment, Mma, Shape, load_fragment, load_rows, mma, store_fragment, store_rows, wmma};
pub(crate) use pair::arithmetic as pair_arithmetic;
pub(crate) use races::{Global as AccessedGlobal, Races};
pub(crate) use state::{Block, Handler, LANES, Op, Trouble, Warp};
pub(crate) use trace::Trace;
