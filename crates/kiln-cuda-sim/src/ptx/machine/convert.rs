//! `cvt` between all number types, and packing of registers.

use std::marker::PhantomData;

use super::float::{Rounding, flush, saturate};
use super::format::{Bf16, DOWN, F16, Half, UP, ZERO, direct, round_tf32};
use super::lanes::{Body, One, Two, handler, lane_functions};
use super::state::{Block, Handler, LANES, Lane, Op, Warp};
use crate::ptx::text::{Kind, Type};

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

/// A conversion: types, rounding and modifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub to: Type,
    pub from: Type,
    pub rounding: Rounding,
    /// The rounding is to a whole number.
    pub integral: bool,
    pub saturate: bool,
    pub flush: bool,
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

/// A number on its way from one type to another, exact.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Integer(i128),
    Float(f64),
}

/// Reads the low bits of `bits` as type `ty`.
fn decode(bits: u64, ty: Type) -> Number {
    match ty {
        Type::U8 | Type::B8 => Number::Integer(i128::from(bits as u8)),
        Type::S8 => Number::Integer(i128::from(bits as i8)),
        Type::U16 | Type::B16 => Number::Integer(i128::from(bits as u16)),
        Type::S16 => Number::Integer(i128::from(bits as i16)),
        Type::U32 | Type::B32 => Number::Integer(i128::from(bits as u32)),
        Type::S32 => Number::Integer(i128::from(bits as i32)),
        Type::S64 => Number::Integer(i128::from(bits as i64)),
        Type::F16 => Number::Float(f64::from(F16::widen(bits as u16))),
        Type::BF16 => Number::Float(f64::from(Bf16::widen(bits as u16))),
        Type::F32 | Type::Tf32 => Number::Float(f64::from(f32::from_bits(bits as u32))),
        Type::F64 => Number::Float(f64::from_bits(bits)),
        _ => Number::Integer(i128::from(bits)),
    }
}

/// Bounds of an integer type.
fn bounds(ty: Type) -> (i128, i128) {
    let bits = ty.bytes() * 8;
    if ty.kind() == Kind::Signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// An exact value as 16 bits of format `H`, in any rounding.
fn half_from<H: Half>(value: f64, rounding: Rounding) -> u16 {
    // f32 with an odd last place where inexact keeps what the second rounding needs
    let near = value as f32;
    let inexact = f64::from(near) != value && near.is_finite() && !value.is_nan();
    let toward_zero = direct::<ZERO>(value, 0.0);
    let sticky = if inexact { f32::from_bits(toward_zero.to_bits() | 1) } else { near };
    let nearest = H::narrow(sticky);
    let found = f64::from(H::widen(nearest));
    let negative = value < 0.0;
    let down = match rounding {
        Rounding::Zero => !negative,
        Rounding::Down => true,
        Rounding::Up => false,
        Rounding::Near | Rounding::Away => return nearest,
    };
    let step = |away: bool| {
        if nearest & 0x7fff == 0 {
            if down { 0x8001 } else { 1 }
        } else if away {
            nearest + 1
        } else {
            nearest - 1
        }
    };
    if down && found > value {
        step(nearest & 0x8000 != 0)
    } else if !down && found < value {
        step(nearest & 0x8000 == 0)
    } else {
        nearest
    }
}

/// The bits of `number` as type `c.to`.
fn encode(number: Number, c: Conversion) -> u64 {
    if c.to.kind() != Kind::Float {
        let (low, high) = bounds(c.to);
        let whole = match number {
            // out of range is clamped only from floating point and with `.sat`; otherwise the low bits stay
            Number::Integer(v) if c.saturate => v.clamp(low, high),
            Number::Integer(v) => v,
            Number::Float(v) if v.is_nan() => 0,
            Number::Float(v) => (round(v, c.rounding) as i128).clamp(low, high),
        };
        return whole as u64 & (u64::MAX >> (64 - 8 * c.to.bytes()));
    }
    // integers of more than 53 bits keep what rounding needs in their last bit
    let mut value = match number {
        Number::Float(v) => v,
        Number::Integer(v) if v.unsigned_abs() >> 62 != 0 && c.to != Type::F64 => {
            (((v >> 11) | i128::from(v & 0x7ff != 0)) as f64) * 2048.0
        }
        Number::Integer(v) => v as f64,
    };
    if c.integral {
        value = round(value, c.rounding);
    }
    if c.saturate {
        value = if value > 0.0 { value.min(1.0) } else { 0.0 };
    }
    match c.to {
        Type::F64 => value.to_bits(),
        Type::F16 => u64::from(half_from::<F16>(value, c.rounding)),
        Type::BF16 => u64::from(half_from::<Bf16>(value, c.rounding)),
        Type::Tf32 => u64::from(round_tf32(value as f32).to_bits()),
        _ => {
            let narrow = match c.rounding {
                Rounding::Near | Rounding::Away => value as f32,
                Rounding::Zero => direct::<ZERO>(value, 0.0),
                Rounding::Down => direct::<DOWN>(value, 0.0),
                Rounding::Up => direct::<UP>(value, 0.0),
            };
            u64::from(if c.flush { flush(narrow) } else { narrow }.to_bits())
        }
    }
}

/// A whole number near `value`.
fn round(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Near => value.round_ties_even(),
        Rounding::Away => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// Converts one value; the definition that the quick forms are tested against.
pub(crate) fn convert(bits: u64, c: Conversion) -> u64 {
    let number = decode(bits, c.from);
    let number = match number {
        Number::Float(v) if c.flush && c.from == Type::F32 => Number::Float(f64::from(flush(v as f32))),
        other => other,
    };
    encode(number, c)
}

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
    use super::super::lanes::Unary;
    use super::*;
    use ::half::f16;
    use proptest::prelude::*;

    fn plain(to: Type, from: Type, rounding: Rounding) -> Conversion {
        Conversion { to, from, rounding, integral: false, saturate: false, flush: false }
    }

    #[test]
    fn conversions_of_the_manual() {
        let zero = |to, from| plain(to, from, Rounding::Zero);
        assert_eq!(convert(u64::from((-1.5_f32).to_bits()), zero(Type::U32, Type::F32)), 0);
        assert_eq!(convert(u64::from(3e9_f32.to_bits()), zero(Type::S32, Type::F32)), 0x7fff_ffff);
        assert_eq!(convert(u64::from(f32::NAN.to_bits()), zero(Type::S32, Type::F32)), 0);
        assert_eq!(convert(0xff, plain(Type::S32, Type::S8, Rounding::Near)), 0xffff_ffff);
        assert_eq!(convert(0x1_2345, plain(Type::U8, Type::U32, Rounding::Near)), 0x45);
        let saturating = Conversion { saturate: true, ..plain(Type::U8, Type::S32, Rounding::Near) };
        assert_eq!([convert(300, saturating), convert(0xffff_ffff, saturating)], [255, 0]);
        assert_eq!(convert(70_000, plain(Type::F16, Type::U32, Rounding::Near)), 0x7c00);
        assert_eq!(
            convert(2049, plain(Type::F16, Type::U32, Rounding::Zero)),
            u64::from(f16::from_f32(2048.0).to_bits())
        );
        assert_eq!(
            convert(2049, plain(Type::F16, Type::U32, Rounding::Up)),
            u64::from(f16::from_f32(2050.0).to_bits())
        );
    }

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

    proptest! {
        #[test]
        fn integers_round_once(v: u64) {
            prop_assert_eq!(convert(v, plain(Type::F32, Type::U64, Rounding::Near)) as u32, (v as f32).to_bits());
            prop_assert_eq!(convert(v, plain(Type::F32, Type::S64, Rounding::Near)) as u32, (v as i64 as f32).to_bits());
            prop_assert_eq!(convert(v, plain(Type::F64, Type::U64, Rounding::Near)), (v as f64).to_bits());
        }

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

        #[test]
        fn f64_to_f16_rounds_once(v in -70_000.0_f64..70_000.0) {
            let h = |rounding| f64::from(F16::widen(convert(v.to_bits(), plain(Type::F16, Type::F64, rounding)) as u16));
            let (near, down, up, zero) = (h(Rounding::Near), h(Rounding::Down), h(Rounding::Up), h(Rounding::Zero));
            prop_assert!(down <= v && v <= up && zero.abs() <= v.abs());
            prop_assert!(near == down || near == up);
            if up.is_finite() && down.is_finite() { prop_assert!((near - v).abs() <= (up - v).min(v - down)); }
        }
    }
}
