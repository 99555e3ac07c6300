//! Arithmetic on f32 that rounds to zero, down or up.

use super::format::{DOWN, direct, error64};
use super::lanes::{Binary, Ternary, Unary};

/// `a + b`.
pub(super) struct AddTo<const MODE: u8>;
/// `a - b`.
pub(super) struct SubTo<const MODE: u8>;
/// `a * b`.
pub(super) struct MulTo<const MODE: u8>;
/// `a / b`.
pub(super) struct DivTo<const MODE: u8>;
/// `a * b + c`.
pub(super) struct FmaTo<const MODE: u8>;
/// `1 / a`.
pub(super) struct RcpTo<const MODE: u8>;
/// The square root of `a`.
pub(super) struct SqrtTo<const MODE: u8>;

/// `p + c` in a directed mode, where `p` is exact.
#[inline(always)]
fn sum<const MODE: u8>(p: f64, c: f64) -> f32 {
    let s = p + c;
    let out = direct::<MODE>(s, error64(p, c, s));
    // operands of opposite signs cancel to minus zero when rounding down
    let cancelled = s == 0.0 && p.is_sign_negative() != c.is_sign_negative();
    if cancelled && MODE == DOWN { -0.0 } else { out }
}

#[inline(always)]
fn quotient<const MODE: u8>(a: f32, b: f32) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let q = a / b;
    let rest = (-q).mul_add(b, a);
    let error =
        if q.is_finite() && b != 0.0 { if (rest > 0.0) == (b > 0.0) { rest.abs() } else { -rest.abs() } } else { 0.0 };
    direct::<MODE>(q, error)
}

macro_rules! directed {
    ($($name:ident($a:ident, $b:ident) => $body:expr;)+) => { $(
        impl<const MODE: u8> Binary for $name<MODE> {
            type A = f32;
            type B = f32;
            type D = f32;
            #[inline(always)]
            fn lane($a: f32, $b: f32) -> f32 { $body }
        }
    )+ };
}
directed! {
    AddTo(a, b) => sum::<MODE>(f64::from(a), f64::from(b));
    SubTo(a, b) => sum::<MODE>(f64::from(a), -f64::from(b));
    MulTo(a, b) => direct::<MODE>(f64::from(a) * f64::from(b), 0.0);
    DivTo(a, b) => quotient::<MODE>(a, b);
}
impl<const MODE: u8> Ternary for FmaTo<MODE> {
    type A = f32;
    type B = f32;
    type C = f32;
    type D = f32;
    #[inline(always)]
    fn lane(a: f32, b: f32, c: f32) -> f32 {
        sum::<MODE>(f64::from(a) * f64::from(b), f64::from(c))
    }
}
impl<const MODE: u8> Unary for RcpTo<MODE> {
    type A = f32;
    type D = f32;
    #[inline(always)]
    fn lane(a: f32) -> f32 {
        quotient::<MODE>(1.0, a)
    }
}
impl<const MODE: u8> Unary for SqrtTo<MODE> {
    type A = f32;
    type D = f32;
    #[inline(always)]
    fn lane(a: f32) -> f32 {
        let a = f64::from(a);
        let root = a.sqrt();
        direct::<MODE>(root, if root.is_finite() { (-root).mul_add(root, a) } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::UP;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rounding_down_cancels_to_minus_zero() {
        assert!(AddTo::<DOWN>::lane(1.0, -1.0).is_sign_negative());
        assert!(AddTo::<UP>::lane(1.0, -1.0).is_sign_positive());
        assert_eq!(DivTo::<UP>::lane(1.0, 0.0), f32::INFINITY);
    }

    proptest! {
        #[test]
        fn quotients_and_roots_are_enclosed(a in 1e-20_f32..1e20, b in 1e-15_f32..1e15) {
            let (down, up) = (DivTo::<DOWN>::lane(a, b), DivTo::<UP>::lane(a, b));
            prop_assert!(down <= a / b && a / b <= up);
            prop_assert!(f64::from(down) * f64::from(b) <= f64::from(a) && f64::from(a) <= f64::from(up) * f64::from(b));
            prop_assert!(up.to_bits() - down.to_bits() <= 1);
            let (down, up) = (SqrtTo::<DOWN>::lane(a), SqrtTo::<UP>::lane(a));
            prop_assert!(f64::from(down) * f64::from(down) <= f64::from(a) && f64::from(a) <= f64::from(up) * f64::from(up));
            prop_assert!(up.to_bits() - down.to_bits() <= 1);
        }
    }
}
