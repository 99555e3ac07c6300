//! Arithmetic on f16 and bf16, alone and in pairs.
//!
//! Sums, differences and products go through f32: its 24 bits are more than twice the 11 of f16 (8 of bf16) and two, so
//! the second rounding changes nothing for normal results.

use std::marker::PhantomData;

use super::float::{exp2, flush};
use super::format::{Bf16, F16, Half};
use super::lanes::{Binary, One, Ternary, Three, Two, Unary, handler};
use super::state::Handler;
use crate::ptx::text::Type;

/// A function of pairs from a function of halves.
struct Packed<F>(PhantomData<F>);

impl<F: Unary<A = u16, D = u16>> Unary for Packed<F> {
    type A = u32;
    type D = u32;
    #[inline(always)]
    fn lane(a: u32) -> u32 {
        u32::from(F::lane(a as u16)) | u32::from(F::lane((a >> 16) as u16)) << 16
    }
}
impl<F: Binary<A = u16, B = u16, D = u16>> Binary for Packed<F> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn lane(a: u32, b: u32) -> u32 {
        u32::from(F::lane(a as u16, b as u16)) | u32::from(F::lane((a >> 16) as u16, (b >> 16) as u16)) << 16
    }
}
impl<F: Ternary<A = u16, B = u16, C = u16, D = u16>> Ternary for Packed<F> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn lane(a: u32, b: u32, c: u32) -> u32 {
        let low = F::lane(a as u16, b as u16, c as u16);
        let high = F::lane((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
        u32::from(low) | u32::from(high) << 16
    }
}

/// Negative results become zero (`.relu`).
struct Relu<F>(PhantomData<F>);

impl<F: Ternary<A = u16, B = u16, C = u16, D = u16>> Ternary for Relu<F> {
    type A = u16;
    type B = u16;
    type C = u16;
    type D = u16;
    #[inline(always)]
    fn lane(a: u16, b: u16, c: u16) -> u16 {
        let value = F::lane(a, b, c);
        // a NaN, which is 0x7fff here, stays
        if value & 0x8000 == 0 { value } else { 0 }
    }
}

macro_rules! unary {
    ($($name:ident($a:ident: $h:ident) $body:expr;)+) => { $(
        struct $name<H>(PhantomData<H>);
        impl<$h: Half> Unary for $name<$h> {
            type A = u16;
            type D = u16;
            #[inline(always)]
            fn lane($a: u16) -> u16 { $body }
        }
    )+ };
}
macro_rules! binary {
    ($($name:ident($a:ident, $b:ident: $h:ident) $body:expr;)+) => { $(
        struct $name<H>(PhantomData<H>);
        impl<$h: Half> Binary for $name<$h> {
            type A = u16;
            type B = u16;
            type D = u16;
            #[inline(always)]
            fn lane($a: u16, $b: u16) -> u16 { $body }
        }
    )+ };
}

unary! {
    Neg(a: H) a ^ 0x8000;
    Abs(a: H) a & 0x7fff;
    Ex2(a: H) H::narrow(exp2(H::widen(a)));
    Ex2Flush(a: H) H::narrow(flush(exp2(flush(H::widen(a)))));
    Tanh(a: H) H::narrow(H::widen(a).tanh());
}
binary! {
    Add(a, b: H) H::narrow(H::widen(a) + H::widen(b));
    Sub(a, b: H) H::narrow(H::widen(a) - H::widen(b));
    Mul(a, b: H) H::narrow(H::widen(a) * H::widen(b));
    Min(a, b: H) pick::<H>(a, b, less::<H>(a, b), a | b, false);
    Max(a, b: H) pick::<H>(a, b, less::<H>(b, a), a & b, false);
    MinNan(a, b: H) pick::<H>(a, b, less::<H>(a, b), a | b, true);
    MaxNan(a, b: H) pick::<H>(a, b, less::<H>(b, a), a & b, true);
}

#[inline(always)]
fn less<H: Half>(a: u16, b: u16) -> bool {
    H::widen(a) < H::widen(b)
}

/// `a` where `first`, else `b`; `equal` for equal operands, which differ at most in the sign of a zero.
#[inline(always)]
fn pick<H: Half>(a: u16, b: u16, first: bool, equal: u16, keep_nan: bool) -> u16 {
    let (wa, wb) = (H::widen(a), H::widen(b));
    let best = if wa == wb {
        equal
    } else if first {
        a
    } else {
        b
    };
    let without_nan = if wa.is_nan() { b } else { a };
    let both = wa.is_nan() & wb.is_nan();
    let any = wa.is_nan() | wb.is_nan();
    if both | (keep_nan & any) {
        0x7fff
    } else if any {
        without_nan
    } else {
        best
    }
}

struct Fma<H>(PhantomData<H>);
impl<H: Half> Ternary for Fma<H> {
    type A = u16;
    type B = u16;
    type C = u16;
    type D = u16;
    #[inline(always)]
    fn lane(a: u16, b: u16, c: u16) -> u16 {
        H::fma(a, b, c)
    }
}

fn one<F: Unary<A = u16, D = u16>>(packed: bool) -> Handler {
    if packed { handler::<One<Packed<F>>>() } else { handler::<One<F>>() }
}
fn two<F: Binary<A = u16, B = u16, D = u16>>(packed: bool) -> Handler {
    if packed { handler::<Two<Packed<F>>>() } else { handler::<Two<F>>() }
}
fn three<F: Ternary<A = u16, B = u16, C = u16, D = u16>>(packed: bool) -> Handler {
    if packed { handler::<Three<Packed<F>>>() } else { handler::<Three<F>>() }
}

fn of<H: Half>(name: &str, form: &str, packed: bool) -> Option<Handler> {
    Some(match (name, form) {
        ("add", "") => two::<Add<H>>(packed),
        ("sub", "") => two::<Sub<H>>(packed),
        ("mul", "") => two::<Mul<H>>(packed),
        ("fma", "") => three::<Fma<H>>(packed),
        ("fma", "relu") => three::<Relu<Fma<H>>>(packed),
        ("neg", "") => one::<Neg<H>>(packed),
        ("abs", "") => one::<Abs<H>>(packed),
        ("min", "") => two::<Min<H>>(packed),
        ("max", "") => two::<Max<H>>(packed),
        ("min", "NaN") => two::<MinNan<H>>(packed),
        ("max", "NaN") => two::<MaxNan<H>>(packed),
        ("ex2", "approx") => one::<Ex2<H>>(packed),
        ("ex2", "approx.ftz") => one::<Ex2Flush<H>>(packed),
        ("tanh", "approx") => one::<Tanh<H>>(packed),
        _ => return None,
    })
}

/// Handler of `name` on a 16-bit type or a pair of them.
pub(crate) fn arithmetic(name: &str, form: &str, ty: Type) -> Option<Handler> {
    match ty {
        Type::F16 => of::<F16>(name, form, false),
        Type::F16x2 => of::<F16>(name, form, true),
        Type::BF16 => of::<Bf16>(name, form, false),
        Type::BF16x2 => of::<Bf16>(name, form, true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::half::{bf16, f16};
    use proptest::prelude::*;

    #[test]
    fn zeros_and_nan() {
        assert_eq!(Min::<F16>::lane(0, 0x8000), 0x8000);
        assert_eq!(Max::<F16>::lane(0x8000, 0), 0);
        assert_eq!(Max::<F16>::lane(0x7e00, 0x3c00), 0x3c00);
        assert_eq!(MaxNan::<F16>::lane(0x7e00, 0x3c00), 0x7fff);
        assert_eq!(Max::<Bf16>::lane(0xbf80, 0x4000), 0x4000);
        assert_eq!(Relu::<Fma<F16>>::lane(0x3c00, 0xbc00, 0), 0);
    }

    proptest! {
        #[test]
        fn halves_and_pairs_agree_with_half(a: u32, b: u32) {
            let f = |v: f64| f16::from_f64(v).to_bits();
            let (x, y) = (f16::from_bits(a as u16), f16::from_bits(b as u16));
            prop_assume!(!x.is_nan() && !y.is_nan());
            let sum = x.to_f64() + y.to_f64();
            prop_assume!(!sum.is_nan());
            // the sum and the product of two f16 are exact in f64
            prop_assert_eq!(Add::<F16>::lane(a as u16, b as u16), f(sum));
            prop_assert_eq!(Packed::<Add<F16>>::lane(a, b) as u16, f(sum));
            prop_assert_eq!(Packed::<Add<F16>>::lane(a.rotate_right(16), b.rotate_right(16)) >> 16, u32::from(f(sum)));
            let product = x.to_f64() * y.to_f64();
            if !product.is_nan() { prop_assert_eq!(Mul::<F16>::lane(a as u16, b as u16), f(product)); }
            let (x, y) = (bf16::from_bits(a as u16), bf16::from_bits(b as u16));
            let difference = x.to_f32() - y.to_f32();
            if !difference.is_nan() {
                prop_assert_eq!(Sub::<Bf16>::lane(a as u16, b as u16), bf16::from_f32_const(difference).to_bits());
            }
        }
    }
}
