//! Conversions that the compiler makes vectors of, and packing of registers.

use std::marker::PhantomData;

use super::super::float::{Rounding, flush, saturate};
use super::super::format::{Bf16, F16, Half, round_tf32};
use super::super::lanes::{Body, One, Two, handler, lane_functions};
use super::super::state::{Block, Handler, LANES, Op, Warp};
use super::exact::Conversion;
use crate::ptx::text::Type;

lane_functions! {
    ZeroExtend16(a: u16) -> u32 { u32::from(a) }
    SignExtend16(a: i16) -> i32 { i32::from(a) }
    ZeroExtend32(a: u32) -> u64 { u64::from(a) }
    SignExtend32(a: i32) -> i64 { i64::from(a) }
    ZeroExtend16To64(a: u16) -> u64 { u64::from(a) }
    Low16Of32(a: u32) -> u16 { a as u16 }
    Low16Of64(a: u64) -> u16 { a as u16 }
    Low32Of64(a: u64) -> u32 { a as u32 }
    High16Of32(a: u32) -> u16 { (a >> 16) as u16 }
    High32Of64(a: u64) -> u32 { (a >> 32) as u32 }
    Join16(a: u16, b: u16) -> u32 { u32::from(a) | u32::from(b) << 16 }
    Join32(a: u32, b: u32) -> u64 { u64::from(a) | u64::from(b) << 32 }
    Tf32(a: f32) -> f32 { round_tf32(a) }
    Saturate(a: f32) -> f32 { saturate(a) }
    Flush(a: f32) -> f32 { flush(a) }
    RoundDown(a: f32) -> f32 { a.floor() }
    RoundUp(a: f32) -> f32 { a.ceil() }
    RoundZero(a: f32) -> f32 { a.trunc() }
    RoundNear(a: f32) -> f32 { a.round_ties_even() }
    S32FromF32(a: f32) -> i32 { a as i32 }
    U32FromF32(a: f32) -> u32 { a as u32 }
    F32FromS32(a: i32) -> f32 { a as f32 }
    F32FromU32(a: u32) -> f32 { a as f32 }
    F64FromF32(a: f32) -> f64 { f64::from(a) }
    F32FromF64(a: f64) -> f32 { a as f32 }
}

/// f32 from a 16-bit format.
struct Widen<H>(PhantomData<H>);
/// A 16-bit format from f32, rounded to nearest.
struct Narrow<H>(PhantomData<H>);
/// A pair from two f32, the first one to the upper half.
struct NarrowPair<H, const RELU: bool>(PhantomData<H>);

impl<H: Half> Body for Widen<H> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: lowering gave slots of these widths.
        unsafe {
            let d = H::widen_all::<WIDE, LANES>(warp.get::<u16>(op.a));
            warp.set(op.d, &d);
        }
        false
    }
}

impl<H: Half> Body for Narrow<H> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: lowering gave slots of these widths.
        unsafe {
            let d = H::narrow_all::<WIDE, LANES>(warp.get::<f32>(op.a));
            warp.set(op.d, &d);
        }
        false
    }
}

impl<H: Half, const RELU: bool> Body for NarrowPair<H, RELU> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let bound = |value: f32| if RELU { positive(value) } else { value };
        let mut d = [0; LANES];
        // SAFETY: lowering gave 32-bit slots.
        unsafe {
            let high = H::narrow_all::<WIDE, LANES>(&warp.get::<f32>(op.a).map(bound));
            let low = H::narrow_all::<WIDE, LANES>(&warp.get::<f32>(op.b).map(bound));
            for l in 0..LANES {
                d[l] = u32::from(high[l]) << 16 | u32::from(low[l]);
            }
            warp.set(op.d, &d);
        }
        false
    }
}

/// Zero for a negative number; a NaN stays.
#[inline(always)]
fn positive(value: f32) -> f32 {
    if value < 0.0 { 0.0 } else { value }
}

/// Handler of a conversion on registers as wide as its types, where there is a quick one.
pub(crate) fn quick(c: Conversion) -> Option<Handler> {
    use Type::{B16, B32, B64, BF16, F16 as H, F32, F64, S16, S32, S64, U16, U32, U64};
    let plain = !c.saturate && !c.flush;
    let near = c.rounding == Rounding::Near && !c.integral;
    Some(match (c.to, c.from) {
        (U32 | S32 | B32, U16 | B16) if plain => handler::<One<ZeroExtend16>>(),
        (U32 | S32, S16) if plain => handler::<One<SignExtend16>>(),
        (U64 | S64 | B64, U32 | B32) if plain => handler::<One<ZeroExtend32>>(),
        (U64 | S64, S32) if plain => handler::<One<SignExtend32>>(),
        (U64 | S64, U16 | B16) if plain => handler::<One<ZeroExtend16To64>>(),
        (U16 | S16 | B16, U32 | S32 | B32) if plain => handler::<One<Low16Of32>>(),
        (U16 | S16 | B16, U64 | S64 | B64) if plain => handler::<One<Low16Of64>>(),
        (U32 | S32 | B32, U64 | S64 | B64) if plain => handler::<One<Low32Of64>>(),
        (F32, H) if plain => handler::<Widen<F16>>(),
        (F32, BF16) if plain => handler::<Widen<Bf16>>(),
        (H, F32) if plain && near => handler::<Narrow<F16>>(),
        (BF16, F32) if plain && near => handler::<Narrow<Bf16>>(),
        (Type::Tf32, F32) if plain && c.rounding == Rounding::Away => handler::<One<Tf32>>(),
        (F32, F32) if near && c.saturate && !c.flush => handler::<One<Saturate>>(),
        (F32, F32) if near && c.flush && !c.saturate => handler::<One<Flush>>(),
        (F32, F32) if plain && c.integral => match c.rounding {
            Rounding::Near => handler::<One<RoundNear>>(),
            Rounding::Zero => handler::<One<RoundZero>>(),
            Rounding::Down => handler::<One<RoundDown>>(),
            Rounding::Up => handler::<One<RoundUp>>(),
            Rounding::Away => return None,
        },
        (S32, F32) if plain && c.rounding == Rounding::Zero => handler::<One<S32FromF32>>(),
        (U32, F32) if plain && c.rounding == Rounding::Zero => handler::<One<U32FromF32>>(),
        (F32, S32) if plain && near => handler::<One<F32FromS32>>(),
        (F32, U32) if plain && near => handler::<One<F32FromU32>>(),
        (F64, F32) if plain => handler::<One<F64FromF32>>(),
        (F32, F64) if plain && near => handler::<One<F32FromF64>>(),
        _ => return None,
    })
}

/// Handler of a conversion of two f32 to a pair.
pub(crate) fn to_pair(ty: Type, relu: bool) -> Option<Handler> {
    match (ty, relu) {
        (Type::F16x2, false) => Some(handler::<NarrowPair<F16, false>>()),
        (Type::BF16x2, false) => Some(handler::<NarrowPair<Bf16, false>>()),
        (Type::F16x2, true) => Some(handler::<NarrowPair<F16, true>>()),
        (Type::BF16x2, true) => Some(handler::<NarrowPair<Bf16, true>>()),
        _ => None,
    }
}

/// Handlers of the upper half of a register of `bytes` bytes, and of joining two halves to one.
pub(crate) fn halves(bytes: u32) -> Option<(Handler, Handler)> {
    match bytes {
        4 => Some((handler::<One<High16Of32>>(), handler::<Two<Join16>>())),
        8 => Some((handler::<One<High32Of64>>(), handler::<Two<Join32>>())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::exact::{convert, plain};
    use super::*;
    use crate::ptx::machine::lanes::Unary;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quick_forms_agree(bits: u32) {
            let v = f32::from_bits(bits);
            let slow = |to, from, rounding| convert(u64::from(bits), plain(to, from, rounding)) as u32;
            prop_assert_eq!(S32FromF32::lane(v) as u32, slow(Type::S32, Type::F32, Rounding::Zero));
            prop_assert_eq!(U32FromF32::lane(v), slow(Type::U32, Type::F32, Rounding::Zero));
            prop_assert_eq!(F32FromS32::lane(bits as i32).to_bits(), slow(Type::F32, Type::S32, Rounding::Near));
            prop_assert_eq!(F32FromU32::lane(bits).to_bits(), slow(Type::F32, Type::U32, Rounding::Near));
            if !v.is_nan() {
                prop_assert_eq!(u32::from(F16::narrow(v)), slow(Type::F16, Type::F32, Rounding::Near));
                prop_assert_eq!(u32::from(Bf16::narrow(v)), slow(Type::BF16, Type::F32, Rounding::Near));
            }
        }
    }
}
