//! The definition of a conversion, and its result for one value.

use super::super::float::{Rounding, flush};
use super::super::format::{Bf16, DOWN, F16, Half, UP, ZERO, direct, round_tf32};
use crate::ptx::text::{Kind, Type};

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

/// A conversion without modifiers.
#[cfg(test)]
pub(super) fn plain(to: Type, from: Type, rounding: Rounding) -> Conversion {
    Conversion { to, from, rounding, integral: false, saturate: false, flush: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::half::f16;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn integers_round_once(v: u64) {
            prop_assert_eq!(convert(v, plain(Type::F32, Type::U64, Rounding::Near)) as u32, (v as f32).to_bits());
            prop_assert_eq!(convert(v, plain(Type::F32, Type::S64, Rounding::Near)) as u32, (v as i64 as f32).to_bits());
            prop_assert_eq!(convert(v, plain(Type::F64, Type::U64, Rounding::Near)), (v as f64).to_bits());
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
