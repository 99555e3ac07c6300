//! Arithmetic on f32 and f64.

use std::marker::PhantomData;

use super::directed::{AddTo, DivTo, FmaTo, MulTo, RcpTo, SqrtTo, SubTo};
use super::format::{DOWN, UP, ZERO};
use super::lanes::{Binary, One, Ternary, Three, Two, Unary, handler, lane_functions};
use super::state::Handler;
use crate::ptx::text::Type;

/// Modifiers of a floating-point instruction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Modes {
    /// Subnormal inputs and results become zero (`.ftz`).
    pub flush: bool,
    /// Results are clamped to 0..=1 (`.sat`).
    pub saturate: bool,
    /// The rounding of the result.
    pub rounding: Rounding,
}

/// Rounding of a result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// Nearest, ties to even.
    #[default]
    Near,
    /// Nearest, ties away from zero.
    Away,
    Zero,
    Down,
    Up,
}

macro_rules! floats {
    ($($module:ident: $t:ty, $sign:expr;)+) => { $(
        pub(crate) mod $module {
            crate::ptx::machine::lanes::lane_functions! {
                Add(a: $t, b: $t) -> $t { a + b }
                Sub(a: $t, b: $t) -> $t { a - b }
                Mul(a: $t, b: $t) -> $t { a * b }
                Div(a: $t, b: $t) -> $t { a / b }
                Fma(a: $t, b: $t, c: $t) -> $t { a.mul_add(b, c) }
                Rcp(a: $t) -> $t { 1.0 / a }
                Sqrt(a: $t) -> $t { a.sqrt() }
                // through the bits, so that a NaN changes its sign too
                Neg(a: $t) -> $t { <$t>::from_bits(a.to_bits() ^ $sign) }
                Abs(a: $t) -> $t { <$t>::from_bits(a.to_bits() & !$sign) }
                // the sign of the first operand, the rest of the second
                CopySign(a: $t, b: $t) -> $t { <$t>::from_bits(b.to_bits() & !$sign | a.to_bits() & $sign) }
                Min(a: $t, b: $t) -> $t {
                    let zeros = <$t>::from_bits(a.to_bits() | b.to_bits());
                    let least = if a < b { a } else if b < a { b } else { zeros };
                    if a.is_nan() { if b.is_nan() { <$t>::from_bits(!$sign) } else { b } } else if b.is_nan() { a } else { least }
                }
                Max(a: $t, b: $t) -> $t {
                    let zeros = <$t>::from_bits(a.to_bits() & b.to_bits());
                    let most = if a > b { a } else if b > a { b } else { zeros };
                    if a.is_nan() { if b.is_nan() { <$t>::from_bits(!$sign) } else { b } } else if b.is_nan() { a } else { most }
                }
                MinNan(a: $t, b: $t) -> $t {
                    let zeros = <$t>::from_bits(a.to_bits() | b.to_bits());
                    let least = if a < b { a } else if b < a { b } else { zeros };
                    if a.is_nan() | b.is_nan() { <$t>::from_bits(!$sign) } else { least }
                }
                MaxNan(a: $t, b: $t) -> $t {
                    let zeros = <$t>::from_bits(a.to_bits() & b.to_bits());
                    let most = if a > b { a } else if b > a { b } else { zeros };
                    if a.is_nan() | b.is_nan() { <$t>::from_bits(!$sign) } else { most }
                }
            }
        }
    )+ };
}
floats! { single: f32, 1_u32 << 31; double: f64, 1_u64 << 63; }

lane_functions! {
    Rsqrt(a: f32) -> f32 { (1.0 / f64::from(a).sqrt()) as f32 }
    RsqrtF64(a: f64) -> f64 { 1.0 / a.sqrt() }
    Ex2(a: f32) -> f32 { exp2(a) }
    Lg2(a: f32) -> f32 { a.log2() }
    Sin(a: f32) -> f32 { a.sin() }
    Cos(a: f32) -> f32 { a.cos() }
    Tanh(a: f32) -> f32 { a.tanh() }
}

/// 2 to the power `x`, to about 1.2e-7 of the result (the GPUs promise 2^-22).
///
/// Source of the polynomial: Cephes 2.2, `exp2f.c`.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let above = if x > -160.0 { x } else { -160.0 };
    let bounded = if above < 130.0 { above } else { 130.0 };
    // 1.5 * 2^23: the sum has no fraction, and its low bits are the whole number
    let shifted = bounded + 12_582_912.0;
    let f = bounded - (shifted - 12_582_912.0);
    let p = 1.535_336_2e-4_f32;
    let p = p * f + 1.339_887_4e-3;
    let p = p * f + 9.618_437e-3;
    let p = p * f + 5.550_332_5e-2;
    let p = p * f + 2.402_264_8e-1;
    let p = p * f + 6.931_472e-1;
    let p = p * f + 1.0;
    // two factors, because 2^whole alone may be subnormal or too large
    let n = (shifted.to_bits() as i32).wrapping_sub(12_582_912.0_f32.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let value = p * power(half) * power(n.wrapping_sub(half));
    if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

/// A subnormal becomes a zero of its sign.
#[inline(always)]
pub(crate) fn flush(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 1 << 31 } else { bits })
}

/// Clamps to 0..=1; NaN becomes 0.
#[inline(always)]
pub(crate) fn saturate(value: f32) -> f32 {
    let low = if value > 0.0 { value } else { 0.0 };
    if low < 1.0 { low } else { 1.0 }
}

/// Flushes operands and result of `F`.
pub(super) struct Ftz<F>(PhantomData<F>);
/// Clamps the result of `F`.
struct Sat<F>(PhantomData<F>);

impl<F: Unary<A = f32, D = f32>> Unary for Ftz<F> {
    type A = f32;
    type D = f32;
    #[inline(always)]
    fn lane(a: f32) -> f32 {
        flush(F::lane(flush(a)))
    }
}
impl<F: Binary<A = f32, B = f32, D = f32>> Binary for Ftz<F> {
    type A = f32;
    type B = f32;
    type D = f32;
    #[inline(always)]
    fn lane(a: f32, b: f32) -> f32 {
        flush(F::lane(flush(a), flush(b)))
    }
}
impl<F: Ternary<A = f32, B = f32, C = f32, D = f32>> Ternary for Ftz<F> {
    type A = f32;
    type B = f32;
    type C = f32;
    type D = f32;
    #[inline(always)]
    fn lane(a: f32, b: f32, c: f32) -> f32 {
        flush(F::lane(flush(a), flush(b), flush(c)))
    }
}
impl<F: Binary<A = f32, B = f32, D = f32>> Binary for Sat<F> {
    type A = f32;
    type B = f32;
    type D = f32;
    #[inline(always)]
    fn lane(a: f32, b: f32) -> f32 {
        saturate(F::lane(a, b))
    }
}
impl<F: Ternary<A = f32, B = f32, C = f32, D = f32>> Ternary for Sat<F> {
    type A = f32;
    type B = f32;
    type C = f32;
    type D = f32;
    #[inline(always)]
    fn lane(a: f32, b: f32, c: f32) -> f32 {
        saturate(F::lane(a, b, c))
    }
}

fn one<F: Unary<A = f32, D = f32>>(modes: Modes) -> Option<Handler> {
    if modes.saturate {
        return None;
    }
    Some(if modes.flush { handler::<One<Ftz<F>>>() } else { handler::<One<F>>() })
}

fn two<F: Binary<A = f32, B = f32, D = f32>>(modes: Modes) -> Option<Handler> {
    Some(match (modes.flush, modes.saturate) {
        (false, false) => handler::<Two<F>>(),
        (true, false) => handler::<Two<Ftz<F>>>(),
        (false, true) => handler::<Two<Sat<F>>>(),
        (true, true) => handler::<Two<Sat<Ftz<F>>>>(),
    })
}

fn three<F: Ternary<A = f32, B = f32, C = f32, D = f32>>(modes: Modes) -> Option<Handler> {
    Some(match (modes.flush, modes.saturate) {
        (false, false) => handler::<Three<F>>(),
        (true, false) => handler::<Three<Ftz<F>>>(),
        (false, true) => handler::<Three<Sat<F>>>(),
        (true, true) => handler::<Three<Sat<Ftz<F>>>>(),
    })
}

macro_rules! rounded {
    ($shape:ident, $modes:expr, $near:ty, $directed:ident) => {
        match $modes.rounding {
            Rounding::Near => $shape::<$near>($modes),
            Rounding::Zero => $shape::<$directed<ZERO>>($modes),
            Rounding::Down => $shape::<$directed<DOWN>>($modes),
            Rounding::Up => $shape::<$directed<UP>>($modes),
            Rounding::Away => None,
        }
    };
}

/// Handler of `name` on f32; `form` is `approx`, `full`, `NaN` or nothing.
pub(crate) fn single(name: &str, form: &str, modes: Modes) -> Option<Handler> {
    match (name, form) {
        ("add", "") => rounded!(two, modes, single::Add, AddTo),
        ("sub", "") => rounded!(two, modes, single::Sub, SubTo),
        ("mul", "") => rounded!(two, modes, single::Mul, MulTo),
        ("fma" | "mad", "") => rounded!(three, modes, single::Fma, FmaTo),
        ("div", "") => rounded!(two, modes, single::Div, DivTo),
        ("rcp", "") => rounded!(one, modes, single::Rcp, RcpTo),
        ("sqrt", "") => rounded!(one, modes, single::Sqrt, SqrtTo),
        ("div", "approx" | "full") => two::<single::Div>(modes),
        ("rcp", "approx") => one::<single::Rcp>(modes),
        ("sqrt", "approx") => one::<single::Sqrt>(modes),
        ("rsqrt", "approx") => one::<Rsqrt>(modes),
        ("ex2", "approx") => one::<Ex2>(modes),
        ("lg2", "approx") => one::<Lg2>(modes),
        ("sin", "approx") => one::<Sin>(modes),
        ("cos", "approx") => one::<Cos>(modes),
        ("tanh", "approx") => one::<Tanh>(modes),
        ("neg", "") => one::<single::Neg>(modes),
        ("abs", "") => one::<single::Abs>(modes),
        ("copysign", "") if !modes.flush => two::<single::CopySign>(modes),
        ("min", "") => two::<single::Min>(modes),
        ("max", "") => two::<single::Max>(modes),
        ("min", "NaN") => two::<single::MinNan>(modes),
        ("max", "NaN") => two::<single::MaxNan>(modes),
        _ => None,
    }
}

/// Handler of `name` on f64, rounded to nearest.
pub(crate) fn double(name: &str, form: &str, modes: Modes) -> Option<Handler> {
    if modes.flush && form != "approx" || modes.saturate || modes.rounding != Rounding::Near {
        return None;
    }
    Some(match (name, form) {
        ("add", "") => handler::<Two<double::Add>>(),
        ("sub", "") => handler::<Two<double::Sub>>(),
        ("mul", "") => handler::<Two<double::Mul>>(),
        ("fma" | "mad", "") => handler::<Three<double::Fma>>(),
        ("div", "") => handler::<Two<double::Div>>(),
        ("rcp", "" | "approx") => handler::<One<double::Rcp>>(),
        ("sqrt", "") => handler::<One<double::Sqrt>>(),
        ("rsqrt", "approx") => handler::<One<RsqrtF64>>(),
        ("neg", "") => handler::<One<double::Neg>>(),
        ("abs", "") => handler::<One<double::Abs>>(),
        ("copysign", "") => handler::<Two<double::CopySign>>(),
        ("min", "") => handler::<Two<double::Min>>(),
        ("max", "") => handler::<Two<double::Max>>(),
        ("min", "NaN") => handler::<Two<double::MinNan>>(),
        ("max", "NaN") => handler::<Two<double::MaxNan>>(),
        _ => return None,
    })
}

/// Handler of `name` on f32 or f64.
pub(crate) fn arithmetic(name: &str, form: &str, modes: Modes, ty: Type) -> Option<Handler> {
    match ty {
        Type::F32 => single(name, form, modes),
        Type::F64 => double(name, form, modes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp2_stays_within_the_error_of_a_card() {
        let mut worst = 0.0_f64;
        for i in -200_000..200_000 {
            let x = i as f32 * 6.3e-4;
            let exact = f64::from(x).exp2();
            worst = worst.max(((f64::from(exp2(x)) - exact) / exact).abs());
        }
        assert!(worst < 2.0_f64.powi(-22), "{worst:e}");
        assert_eq!(
            [exp2(128.0), exp2(f32::INFINITY), exp2(-151.0), exp2(f32::NEG_INFINITY)],
            [f32::INFINITY, f32::INFINITY, 0.0, 0.0]
        );
        assert_eq!(
            [exp2(0.0), exp2(10.0), exp2(-126.0), exp2(-149.0)],
            [1.0, 1024.0, f32::MIN_POSITIVE, f32::from_bits(1)]
        );
        assert!(exp2(f32::NAN).is_nan());
    }

    #[test]
    fn minimum_and_maximum_know_zeros_and_nan() {
        let bits = |v: f32| v.to_bits();
        assert_eq!(bits(single::Min::lane(0.0, -0.0)), bits(-0.0));
        assert_eq!(bits(single::Max::lane(-0.0, 0.0)), bits(0.0));
        assert_eq!(single::Max::lane(f32::NAN, 2.0), 2.0);
        assert_eq!(bits(single::MaxNan::lane(f32::NAN, 2.0)), 0x7fff_ffff);
        assert_eq!(bits(single::Min::lane(f32::NAN, f32::NAN)), 0x7fff_ffff);
        assert_eq!((single::Min::lane(-3.0, 2.0), single::Max::lane(-3.0, 2.0)), (-3.0, 2.0));
    }

    #[test]
    fn saturation_and_flushing() {
        assert_eq!([saturate(-1.0), saturate(0.25), saturate(7.0), saturate(f32::NAN)], [0.0, 0.25, 1.0, 0.0]);
        assert_eq!(flush(f32::from_bits(0x8000_0001)).to_bits(), 1 << 31);
        assert_eq!(flush(f32::MIN_POSITIVE), f32::MIN_POSITIVE);
    }
}
