//! `cvt` between all number types, and packing of registers.

mod exact;
mod quick;
mod slow;

pub(crate) use exact::Conversion;
pub(crate) use quick::{halves, quick, to_pair};
pub(crate) use slow::{pack, slow};
