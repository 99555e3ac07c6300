//! Arithmetic on pairs of f32 (`.f32x2`, from sm_100 on).

use std::marker::PhantomData;

use super::float::{Ftz, single};
use super::lanes::{Binary, Ternary, Three, Two, handler};
use super::state::Handler;

/// Both halves of 64 bits.
struct Pair<F>(PhantomData<F>);

fn halves(pair: u64) -> [f32; 2] {
    [f32::from_bits(pair as u32), f32::from_bits((pair >> 32) as u32)]
}

fn joined([low, high]: [f32; 2]) -> u64 {
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}

impl<F: Binary<A = f32, B = f32, D = f32>> Binary for Pair<F> {
    type A = u64;
    type B = u64;
    type D = u64;
    #[inline(always)]
    fn lane(a: u64, b: u64) -> u64 {
        let (a, b) = (halves(a), halves(b));
        joined([F::lane(a[0], b[0]), F::lane(a[1], b[1])])
    }
}

impl<F: Ternary<A = f32, B = f32, C = f32, D = f32>> Ternary for Pair<F> {
    type A = u64;
    type B = u64;
    type C = u64;
    type D = u64;
    #[inline(always)]
    fn lane(a: u64, b: u64, c: u64) -> u64 {
        let (a, b, c) = (halves(a), halves(b), halves(c));
        joined([F::lane(a[0], b[0], c[0]), F::lane(a[1], b[1], c[1])])
    }
}

/// Handler of `name` on pairs.
pub(crate) fn arithmetic(name: &str, form: &str) -> Option<Handler> {
    Some(match (name, form) {
        ("add", "") => handler::<Two<Pair<single::Add>>>(),
        ("add", ".ftz") => handler::<Two<Pair<Ftz<single::Add>>>>(),
        ("sub", "") => handler::<Two<Pair<single::Sub>>>(),
        ("sub", ".ftz") => handler::<Two<Pair<Ftz<single::Sub>>>>(),
        ("mul", "") => handler::<Two<Pair<single::Mul>>>(),
        ("mul", ".ftz") => handler::<Two<Pair<Ftz<single::Mul>>>>(),
        ("fma", "") => handler::<Three<Pair<single::Fma>>>(),
        ("fma", ".ftz") => handler::<Three<Pair<Ftz<single::Fma>>>>(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_are_computed() {
        let (a, b) = (joined([1.5, -2.0]), joined([0.25, 8.0]));
        assert_eq!(halves(Pair::<single::Add>::lane(a, b)), [1.75, 6.0]);
        assert_eq!(halves(Pair::<single::Mul>::lane(a, b)), [0.375, -16.0]);
        assert_eq!(halves(Pair::<single::Fma>::lane(a, b, joined([1.0, 1.0]))), [1.375, -15.0]);
        let tiny = f32::from_bits(3);
        assert_eq!(halves(Pair::<Ftz<single::Add>>::lane(joined([tiny, 1.0]), joined([0.0, tiny]))), [0.0, 1.0]);
        assert!(arithmetic("div", "").is_none());
    }
}
