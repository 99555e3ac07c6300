//! Turns a function of one lane into an operation on a warp, compiled once for any processor and once for a recent one.

use std::marker::PhantomData;

use super::mask::pack;
use super::state::{Block, Handler, LANES, Lane, Op, Warp};

/// The body of an operation.
pub(crate) trait Body {
    /// Runs the operation; see [`Handler`]. `WIDE` says that the processor has what `wide` below is compiled for.
    ///
    /// # Safety
    /// As for [`Handler`].
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool;
}

unsafe fn plain<B: Body>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
    // SAFETY: the caller's promise is that of `Handler`.
    unsafe { B::run::<false>(warp, block, op) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn wide<B: Body>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
    // SAFETY: the caller's promise is that of `Handler`.
    unsafe { B::run::<true>(warp, block, op) }
}

/// Whether the processor has what [`wide`] is compiled for.
#[cfg(target_arch = "x86_64")]
fn has_wide() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// The form of an operation for this processor.
pub(crate) fn handler<B: Body>() -> Handler {
    #[cfg(target_arch = "x86_64")]
    if has_wide() {
        return wide::<B>;
    }
    plain::<B>
}

/// A function of one operand.
pub(crate) trait Unary {
    type A: Lane;
    type D: Lane;
    fn lane(a: Self::A) -> Self::D;
}

/// A function of two operands.
pub(crate) trait Binary {
    type A: Lane;
    type B: Lane;
    type D: Lane;
    fn lane(a: Self::A, b: Self::B) -> Self::D;
}

/// A function of three operands.
pub(crate) trait Ternary {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    fn lane(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// A comparison.
pub(crate) trait Compare {
    type A: Lane;
    fn lane(a: Self::A, b: Self::A) -> bool;
}

/// `d = f(a)`.
pub(crate) struct One<F>(PhantomData<F>);
/// `d = f(a, b)`.
pub(crate) struct Two<F>(PhantomData<F>);
/// `d = f(a, b, c)`.
pub(crate) struct Three<F>(PhantomData<F>);
/// `d = f(a, b)` where `d` is a predicate.
pub(crate) struct Test<F>(PhantomData<F>);

impl<F: Unary> Body for One<F> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut d = [F::D::default(); LANES];
        // SAFETY: lowering gave slots of these widths.
        unsafe {
            let a = warp.get::<F::A>(op.a);
            for l in 0..LANES {
                d[l] = F::lane(a[l]);
            }
            warp.set(op.d, &d);
        }
        false
    }
}

impl<F: Binary> Body for Two<F> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut d = [F::D::default(); LANES];
        // SAFETY: lowering gave slots of these widths.
        unsafe {
            let (a, b) = (warp.get::<F::A>(op.a), warp.get::<F::B>(op.b));
            for l in 0..LANES {
                d[l] = F::lane(a[l], b[l]);
            }
            warp.set(op.d, &d);
        }
        false
    }
}

impl<F: Ternary> Body for Three<F> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut d = [F::D::default(); LANES];
        // SAFETY: lowering gave slots of these widths.
        unsafe {
            let (a, b, c) = (warp.get::<F::A>(op.a), warp.get::<F::B>(op.b), warp.get::<F::C>(op.c));
            for l in 0..LANES {
                d[l] = F::lane(a[l], b[l], c[l]);
            }
            warp.set(op.d, &d);
        }
        false
    }
}

impl<F: Compare> Body for Test<F> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut flags = [0_u8; LANES];
        // SAFETY: lowering gave slots of these widths.
        unsafe {
            let (a, b) = (warp.get::<F::A>(op.a), warp.get::<F::A>(op.b));
            for l in 0..LANES {
                flags[l] = if F::lane(a[l], b[l]) { 0xff } else { 0 };
            }
            warp.set_predicate(op.d, pack::<WIDE>(&flags));
        }
        false
    }
}

/// Defines functions of one lane: `Name(a: type, ...) -> type { ... }`.
macro_rules! lane_functions {
    ($($name:ident($($arg:ident: $ty:ty),+) -> $out:ty $body:block)+) => {
        $( crate::ptx::machine::lanes::lane_function!($name($($arg: $ty),+) -> $out $body); )+
    };
}

macro_rules! lane_function {
    ($name:ident($a:ident: $ta:ty) -> $out:ty $body:block) => {
        pub(crate) struct $name;
        impl crate::ptx::machine::lanes::Unary for $name {
            type A = $ta;
            type D = $out;
            #[inline(always)]
            fn lane($a: $ta) -> $out $body
        }
    };
    ($name:ident($a:ident: $ta:ty, $b:ident: $tb:ty) -> $out:ty $body:block) => {
        pub(crate) struct $name;
        impl crate::ptx::machine::lanes::Binary for $name {
            type A = $ta;
            type B = $tb;
            type D = $out;
            #[inline(always)]
            fn lane($a: $ta, $b: $tb) -> $out $body
        }
    };
    ($name:ident($a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty) -> $out:ty $body:block) => {
        pub(crate) struct $name;
        impl crate::ptx::machine::lanes::Ternary for $name {
            type A = $ta;
            type B = $tb;
            type C = $tc;
            type D = $out;
            #[inline(always)]
            fn lane($a: $ta, $b: $tb, $c: $tc) -> $out $body
        }
    };
}

/// Defines comparisons: `Name(a, b: type) { ... }`.
macro_rules! lane_tests {
    ($($name:ident($a:ident, $b:ident: $t:ty) $body:block)+) => { $(
        pub(crate) struct $name;
        impl crate::ptx::machine::lanes::Compare for $name {
            type A = $t;
            #[inline(always)]
            fn lane($a: $t, $b: $t) -> bool $body
        }
    )+ };
}

pub(crate) use {lane_function, lane_functions, lane_tests};
