//! Any conversion, one lane after the other: for those that have no quick form.

use std::marker::PhantomData;

use super::super::float::Rounding;
use super::super::lanes::{Body, handler};
use super::super::state::{Block, Handler, LANES, Lane, Op, Warp};
use super::exact::{Conversion, convert};
use crate::ptx::text::Type;

const TYPES: [Type; 15] = [
    Type::U8,
    Type::S8,
    Type::U16,
    Type::S16,
    Type::U32,
    Type::S32,
    Type::U64,
    Type::S64,
    Type::F16,
    Type::BF16,
    Type::F32,
    Type::F64,
    Type::Tf32,
    Type::B16,
    Type::B32,
];
const ROUNDINGS: [Rounding; 5] = [Rounding::Near, Rounding::Away, Rounding::Zero, Rounding::Down, Rounding::Up];

/// A conversion as the number that [`Slow`] finds in [`Op::x`]; nothing for types that `cvt` does not know.
pub(crate) fn pack(c: Conversion) -> Option<u64> {
    let at = |ty: Type| TYPES.iter().position(|&t| t == ty).map(|n| n as u64);
    let rounding = ROUNDINGS.iter().position(|&r| r == c.rounding)? as u64;
    let flags = u64::from(c.integral) | u64::from(c.saturate) << 1 | u64::from(c.flush) << 2;
    Some(at(c.to)? | at(c.from)? << 8 | rounding << 16 | flags << 24)
}

fn unpack(x: u64) -> Conversion {
    Conversion {
        to: TYPES[(x & 15) as usize],
        from: TYPES[(x >> 8 & 15) as usize],
        rounding: ROUNDINGS[(x >> 16 & 7) as usize],
        integral: x >> 24 & 1 == 1,
        saturate: x >> 25 & 1 == 1,
        flush: x >> 26 & 1 == 1,
    }
}

/// Any conversion, lane by lane, between registers of the types `A` and `D`.
struct Slow<A, D>(PhantomData<(A, D)>);
/// An unsigned register type.
trait Word: Lane {
    fn widen(self) -> u64;
    fn narrow(bits: u64) -> Self;
}
macro_rules! word {
    ($($t:ty)*) => { $(
        impl Word for $t {
            fn widen(self) -> u64 { u64::from(self) }
            fn narrow(bits: u64) -> $t { bits as $t }
        }
    )* };
}
word!(u16 u32 u64);

impl<A: Word, D: Word> Body for Slow<A, D> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let conversion = unpack(op.x);
        let mut d = [D::default(); LANES];
        // SAFETY: lowering gave slots of these widths.
        unsafe {
            let a = warp.get::<A>(op.a);
            for l in warp.running() {
                d[l] = D::narrow(convert(a[l].widen(), conversion));
            }
            warp.set(op.d, &d);
        }
        false
    }
}

/// Handler of any conversion, for registers as wide as its types.
pub(crate) fn slow(c: Conversion) -> Handler {
    macro_rules! from {
        ($a:ty) => {
            match c.to.bytes() {
                1 | 2 => handler::<Slow<$a, u16>>(),
                4 => handler::<Slow<$a, u32>>(),
                _ => handler::<Slow<$a, u64>>(),
            }
        };
    }
    match c.from.bytes() {
        1 | 2 => from!(u16),
        4 => from!(u32),
        _ => from!(u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_every_conversion() {
        for to in TYPES {
            for from in TYPES {
                for rounding in ROUNDINGS {
                    for flags in 0..8 {
                        let (integral, saturate, flush) = (flags & 1 == 1, flags & 2 == 2, flags & 4 == 4);
                        let c = Conversion { to, from, rounding, integral, saturate, flush };
                        assert_eq!(pack(c).map(unpack), Some(c));
                    }
                }
            }
        }
    }
}
