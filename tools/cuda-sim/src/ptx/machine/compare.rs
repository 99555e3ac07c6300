//! Comparisons, selection and logic on predicates.

use super::lanes::{Body, Test, handler};
use super::mask::expand;
use super::state::{Block, Handler, LANES, Lane, Op, Warp};
use crate::ptx::text::{Type, Width};

macro_rules! integer_tests {
    ($($module:ident: $t:ty;)+) => { $(
        mod $module {
            crate::ptx::machine::lanes::lane_tests! {
                Eq(a, b: $t) { a == b }
                Ne(a, b: $t) { a != b }
                Lt(a, b: $t) { a < b }
                Le(a, b: $t) { a <= b }
                Gt(a, b: $t) { a > b }
                Ge(a, b: $t) { a >= b }
            }
        }
    )+ };
}
integer_tests! { unsigned16: u16; signed16: i16; unsigned32: u32; signed32: i32; unsigned64: u64; signed64: i64; }

/// `$t` is the register, `$f` makes a number of it.
macro_rules! float_tests {
    ($($module:ident: $t:ty, $f:expr;)+) => { $(
        mod $module {
            #![allow(unused_imports, reason = "only the 16-bit types need them")]
            #![allow(clippy::neg_cmp_op_on_partial_ord, reason = "true where one is NaN")]
            use crate::ptx::machine::format::{Bf16, F16, Half};
            crate::ptx::machine::lanes::lane_tests! {
                Eq(a, b: $t) { ($f)(a) == ($f)(b) }
                // ordered: false where one is NaN
                Ne(a, b: $t) { ($f)(a) < ($f)(b) || ($f)(a) > ($f)(b) }
                Lt(a, b: $t) { ($f)(a) < ($f)(b) }
                Le(a, b: $t) { ($f)(a) <= ($f)(b) }
                Gt(a, b: $t) { ($f)(a) > ($f)(b) }
                Ge(a, b: $t) { ($f)(a) >= ($f)(b) }
                // unordered: true where one is NaN
                Equ(a, b: $t) { !(($f)(a) < ($f)(b) || ($f)(a) > ($f)(b)) }
                Neu(a, b: $t) { ($f)(a) != ($f)(b) }
                Ltu(a, b: $t) { !(($f)(a) >= ($f)(b)) }
                Leu(a, b: $t) { !(($f)(a) > ($f)(b)) }
                Gtu(a, b: $t) { !(($f)(a) <= ($f)(b)) }
                Geu(a, b: $t) { !(($f)(a) < ($f)(b)) }
                Num(a, b: $t) { !($f)(a).is_nan() && !($f)(b).is_nan() }
                Nan(a, b: $t) { ($f)(a).is_nan() || ($f)(b).is_nan() }
            }
        }
    )+ };
}
float_tests! {
    single: f32, std::convert::identity::<f32>;
    double: f64, std::convert::identity::<f64>;
    flushed: f32, crate::ptx::machine::float::flush;
    half: u16, F16::widen;
    brain: u16, Bf16::widen;
}

macro_rules! integers {
    ($module:ident, $name:expr) => {
        match $name {
            "eq" => Some(handler::<Test<$module::Eq>>()),
            "ne" => Some(handler::<Test<$module::Ne>>()),
            "lt" | "lo" => Some(handler::<Test<$module::Lt>>()),
            "le" | "ls" => Some(handler::<Test<$module::Le>>()),
            "gt" | "hi" => Some(handler::<Test<$module::Gt>>()),
            "ge" | "hs" => Some(handler::<Test<$module::Ge>>()),
            _ => None,
        }
    };
}
macro_rules! floats {
    ($module:ident, $name:expr) => {
        match $name {
            "eq" => Some(handler::<Test<$module::Eq>>()),
            "ne" => Some(handler::<Test<$module::Ne>>()),
            "lt" => Some(handler::<Test<$module::Lt>>()),
            "le" => Some(handler::<Test<$module::Le>>()),
            "gt" => Some(handler::<Test<$module::Gt>>()),
            "ge" => Some(handler::<Test<$module::Ge>>()),
            "equ" => Some(handler::<Test<$module::Equ>>()),
            "neu" => Some(handler::<Test<$module::Neu>>()),
            "ltu" => Some(handler::<Test<$module::Ltu>>()),
            "leu" => Some(handler::<Test<$module::Leu>>()),
            "gtu" => Some(handler::<Test<$module::Gtu>>()),
            "geu" => Some(handler::<Test<$module::Geu>>()),
            "num" => Some(handler::<Test<$module::Num>>()),
            "nan" => Some(handler::<Test<$module::Nan>>()),
            _ => None,
        }
    };
}

/// Handler of `setp` with the comparison `name`.
pub(crate) fn test(name: &str, ty: Type, flush: bool) -> Option<Handler> {
    match ty {
        _ if flush && ty != Type::F32 => None,
        Type::B16 | Type::U16 => integers!(unsigned16, name),
        Type::S16 => integers!(signed16, name),
        Type::B32 | Type::U32 => integers!(unsigned32, name),
        Type::S32 => integers!(signed32, name),
        Type::B64 | Type::U64 => integers!(unsigned64, name),
        Type::S64 => integers!(signed64, name),
        Type::F32 if flush => floats!(flushed, name),
        Type::F32 => floats!(single, name),
        Type::F64 => floats!(double, name),
        Type::F16 => floats!(half, name),
        Type::BF16 => floats!(brain, name),
        _ => None,
    }
}

/// `selp`: `a` where predicate `c` holds, else `b`.
struct Select<T>(std::marker::PhantomData<T>);
impl<T: Lane> Body for Select<T> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut d = [T::default(); LANES];
        // SAFETY: lowering gave slots of this width and a predicate.
        unsafe {
            let (a, b, c) = (warp.get::<T>(op.a), warp.get::<T>(op.b), expand(warp.predicate(op.c)));
            for l in 0..LANES {
                d[l] = T::blend(c[l], a[l], b[l]);
            }
            warp.set(op.d, &d);
        }
        false
    }
}

/// Handler of `selp`.
pub(crate) fn select(width: Width) -> Option<Handler> {
    match width {
        Width::W16 => Some(handler::<Select<u16>>()),
        Width::W32 => Some(handler::<Select<u32>>()),
        Width::W64 => Some(handler::<Select<u64>>()),
        Width::Pred => None,
    }
}

/// Logic on predicates; the inputs are flipped by the low two bits of `x`.
struct Logic<const NAME: u8>;
impl<const NAME: u8> Body for Logic<NAME> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: lowering gave predicates.
        unsafe {
            let a = warp.predicate(op.a) ^ 0_u32.wrapping_sub((op.x & 1) as u32);
            let b = warp.predicate(op.b) ^ 0_u32.wrapping_sub((op.x >> 1 & 1) as u32);
            let bits = match NAME {
                0 => a & b,
                1 => a | b,
                2 => a ^ b,
                _ => a,
            };
            warp.set_predicate(op.d, bits);
        }
        false
    }
}

/// Handler of logic on predicates: `and`, `or`, `xor`, or `mov`, which takes `a` alone.
pub(crate) fn predicate_logic(name: &str) -> Option<Handler> {
    Some(match name {
        "and" => handler::<Logic<0>>(),
        "or" => handler::<Logic<1>>(),
        "xor" => handler::<Logic<2>>(),
        "mov" => handler::<Logic<3>>(),
        _ => return None,
    })
}
