//! Conversions between floating-point formats, without branches so that the compiler makes vectors of them.

/// A 16-bit floating-point format.
pub(crate) trait Half: 'static {
    /// The exact value.
    fn widen(bits: u16) -> f32;
    /// Nearest, ties to even; NaN becomes 0x7fff.
    fn narrow(value: f32) -> u16;
    /// `a * b + c` rounded once.
    fn fma(a: u16, b: u16, c: u16) -> u16;

    /// [`Half::widen`] of many numbers; `WIDE` says that the processor has AVX2 and F16C.
    #[inline(always)]
    fn widen_all<const WIDE: bool, const N: usize>(bits: &[u16; N]) -> [f32; N] {
        let mut out = [0.0; N];
        for n in 0..N {
            out[n] = Self::widen(bits[n]);
        }
        out
    }

    /// [`Half::narrow`] of many numbers; `WIDE` says that the processor has AVX2 and F16C.
    #[inline(always)]
    fn narrow_all<const WIDE: bool, const N: usize>(values: &[f32; N]) -> [u16; N] {
        let mut out = [0; N];
        for n in 0..N {
            out[n] = Self::narrow(values[n]);
        }
        out
    }
}

/// IEEE half precision.
pub(crate) struct F16;
/// The upper half of an f32.
pub(crate) struct Bf16;

impl Half for F16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
        let exponent = rest & (0x7c00 << 13);
        let normal = rest + ((127 - 15) << 23);
        let special = rest + ((255 - 31) << 23);
        // 2^-14 + mantissa, less 2^-14
        let subnormal = (f32::from_bits(rest + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
        let value = if exponent == 0x7c00 << 13 { special } else { normal };
        f32::from_bits(sign | if exponent == 0 { subnormal } else { value })
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let (sign, rest) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
        let normal = rest.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + (rest >> 13 & 1)) >> 13;
        // adding 0.5 rounds to multiples of 2^-24, the subnormal step
        let subnormal = (f32::from_bits(rest) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
        let finite = if rest < 0x3880_0000 { subnormal } else { normal };
        let bounded = if rest >= 0x477f_f000 { 0x7c00 } else { finite };
        (if rest > 0x7f80_0000 { 0x7fff } else { sign | bounded }) as u16
    }

    #[inline(always)]
    fn fma(a: u16, b: u16, c: u16) -> u16 {
        // the product of two 11-bit significands is exact; rounding the sum to odd makes the second rounding harmless
        let (product, c) = (Self::widen(a) * Self::widen(b), Self::widen(c));
        let sum = product + c;
        Self::narrow(to_odd32(sum, error32(product, c, sum)))
    }

    #[inline(always)]
    fn widen_all<const WIDE: bool, const N: usize>(bits: &[u16; N]) -> [f32; N] {
        let mut out = [0.0; N];
        #[cfg(target_arch = "x86_64")]
        if WIDE && N.is_multiple_of(8) {
            use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
            for n in (0..N).step_by(8) {
                // SAFETY: `WIDE` promises F16C, and both arrays have eight numbers from `n` on.
                unsafe {
                    let eight = _mm256_cvtph_ps(_mm_loadu_si128(bits.as_ptr().add(n).cast()));
                    _mm256_storeu_ps(out.as_mut_ptr().add(n), eight);
                }
            }
            return out;
        }
        for n in 0..N {
            out[n] = Self::widen(bits[n]);
        }
        out
    }

    #[inline(always)]
    fn narrow_all<const WIDE: bool, const N: usize>(values: &[f32; N]) -> [u16; N] {
        let mut out = [0; N];
        #[cfg(target_arch = "x86_64")]
        if WIDE && N.is_multiple_of(8) {
            use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps};
            for n in (0..N).step_by(8) {
                // SAFETY: `WIDE` promises F16C, and both arrays have eight numbers from `n` on.
                unsafe {
                    let eight = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(values.as_ptr().add(n)));
                    _mm_storeu_si128(out.as_mut_ptr().add(n).cast(), eight);
                }
            }
            for n in 0..N {
                out[n] = if out[n] & 0x7fff > 0x7c00 { 0x7fff } else { out[n] };
            }
            return out;
        }
        for n in 0..N {
            out[n] = Self::narrow(values[n]);
        }
        out
    }
}

impl Half for Bf16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff } else { rounded }
    }

    #[inline(always)]
    fn fma(a: u16, b: u16, c: u16) -> u16 {
        let product = f64::from(Self::widen(a)) * f64::from(Self::widen(b));
        let c = f64::from(Self::widen(c));
        let sum = product + c;
        let odd = to_odd64(sum, error64(product, c, sum));
        let narrow = odd as f32;
        Self::narrow(to_odd32(narrow, (odd - f64::from(narrow)) as f32))
    }
}

/// What `a + b` lost when it was rounded to `sum` (Knuth's two-sum).
#[inline(always)]
pub(crate) fn error32(a: f32, b: f32, sum: f32) -> f32 {
    let b_part = sum - a;
    (a - (sum - b_part)) + (b - b_part)
}

/// What `a + b` lost when it was rounded to `sum` (Knuth's two-sum).
#[inline(always)]
pub(crate) fn error64(a: f64, b: f64, sum: f64) -> f64 {
    let b_part = sum - a;
    (a - (sum - b_part)) + (b - b_part)
}

/// Of the two neighbours of an inexact result, the one with an odd significand.
#[inline(always)]
fn to_odd32(value: f32, error: f32) -> f32 {
    let bits = value.to_bits();
    let away = (error > 0.0) == (value > 0.0);
    let moved = if away { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let inexact = error.abs() > 0.0 && value.abs() < f32::INFINITY;
    f32::from_bits(if inexact & (bits & 1 == 0) { moved } else { bits })
}

/// Of the two neighbours of an inexact result, the one with an odd significand.
#[inline(always)]
fn to_odd64(value: f64, error: f64) -> f64 {
    let bits = value.to_bits();
    let away = (error > 0.0) == (value > 0.0);
    let moved = if away { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let inexact = error.abs() > 0.0 && value.abs() < f64::INFINITY;
    f64::from_bits(if inexact & (bits & 1 == 0) { moved } else { bits })
}

/// An f32 rounded to the 19 bits of TF32: nearest, ties away from zero (`cvt.rna.tf32.f32`).
#[inline(always)]
pub(crate) fn round_tf32(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x1000) & !0x1fff;
    f32::from_bits(if bits & 0x7fff_ffff >= 0x7f80_0000 { bits } else { rounded })
}

/// An f32 as a tensor core reads it as TF32: the low 13 bits do not count.
#[inline(always)]
pub(crate) fn read_tf32(bits: u32) -> f32 {
    f32::from_bits(bits & !0x1fff)
}

/// Rounding toward zero.
pub(crate) const ZERO: u8 = 0;
/// Rounding down.
pub(crate) const DOWN: u8 = 1;
/// Rounding up.
pub(crate) const UP: u8 = 2;

/// `value + error` as an f32 in a directed rounding mode, where `|error|` is at most half a unit of `value`'s last place.
#[inline(always)]
pub(crate) fn direct<const MODE: u8>(value: f64, error: f64) -> f32 {
    let near = value as f32;
    let wide = f64::from(near);
    // where the exact value lies from `near`
    let below = value < wide || (value == wide && error < 0.0);
    let above = value > wide || (value == wide && error > 0.0);
    let (lower, upper) = (step(near, false), step(near, true));
    let down = if below { lower } else { near };
    let up = if above { upper } else { near };
    match MODE {
        DOWN => down,
        UP => up,
        _ => {
            if value > 0.0 {
                down
            } else {
                up
            }
        }
    }
}

/// The next f32 up or down; a zero steps to the smallest subnormal, an infinity to the largest finite number.
#[inline(always)]
fn step(value: f32, up: bool) -> f32 {
    let bits = value.to_bits();
    let away = (value > 0.0) == up;
    let moved = if away { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if value == 0.0 { if up { 1 } else { 0x8000_0001 } } else { moved })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    #[test]
    fn every_half_widens_and_returns() {
        for bits in 0..=u16::MAX {
            let (f, b) = (F16::widen(bits), Bf16::widen(bits));
            assert!(f == f16::from_bits(bits).to_f32() || f.is_nan() && f16::from_bits(bits).is_nan());
            assert!(b == bf16::from_bits(bits).to_f32() || b.is_nan() && bf16::from_bits(bits).is_nan());
            assert_eq!(F16::narrow(f), if f.is_nan() { 0x7fff } else { bits });
            assert_eq!(Bf16::narrow(b), if b.is_nan() { 0x7fff } else { bits });
        }
    }

    #[test]
    fn tf32_rounds_ties_away() {
        let ulp = 2.0_f32.powi(-10);
        assert_eq!(round_tf32(1.0 + ulp / 2.0), 1.0 + ulp);
        assert_eq!(round_tf32(-1.0 - ulp / 2.0), -1.0 - ulp);
        assert_eq!(round_tf32(1.0 + ulp / 2.001), 1.0);
        assert_eq!(round_tf32(f32::INFINITY), f32::INFINITY);
        assert!(round_tf32(f32::NAN).is_nan());
        assert_eq!(read_tf32((1.0 + ulp * 0.999).to_bits()), 1.0);
    }

    /// The 16-bit number nearest to an exact sum of two f64, by looking at every candidate near it.
    fn nearest<H: Half>(product: f64, c: f64, guess: u16) -> u16 {
        let sum = product + c;
        if !sum.is_finite() {
            return H::narrow(sum as f32);
        }
        let error = error64(product, c, sum);
        // the distance to a candidate: a large part, and the rest of the sum toward or away from it
        let distance = |bits: u16| {
            let d = sum - f64::from(H::widen(bits));
            (d.abs(), if d < 0.0 { -error } else { error })
        };
        let mut best = guess;
        for delta in -2_i32..=2 {
            let bits = (i32::from(guess & 0x7fff) + delta).clamp(0, 0x7fff) as u16 | guess & 0x8000;
            if !H::widen(bits).is_finite() || !H::widen(best).is_finite() {
                continue;
            }
            let (near, best_near) = (distance(bits), distance(best));
            if near < best_near || near == best_near && bits & 1 == 0 && best & 1 == 1 {
                best = bits;
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn narrowing_agrees_with_half(bits: u32) {
            let v = f32::from_bits(bits);
            prop_assume!(!v.is_nan());
            prop_assert_eq!(F16::narrow(v), f16::from_f32_const(v).to_bits());
            prop_assert_eq!(Bf16::narrow(v), bf16::from_f32_const(v).to_bits());
        }

        #[test]
        fn fused_products_round_once(a: u16, b: u16, c: u16) {
            let exact = |w: fn(u16) -> f32| (f64::from(w(a)) * f64::from(w(b)), f64::from(w(c)));
            let (p, s) = exact(F16::widen);
            let found = F16::fma(a, b, c);
            if F16::widen(found).is_finite() && (p + s).is_finite() { prop_assert_eq!(found, nearest::<F16>(p, s, found)); }
            let (p, s) = exact(Bf16::widen);
            let found = Bf16::fma(a, b, c);
            if Bf16::widen(found).is_finite() && (p + s).is_finite() { prop_assert_eq!(found, nearest::<Bf16>(p, s, found)); }
        }

        #[test]
        fn directed_rounding_encloses(a: f32, b: f32, c: f32) {
            let product = f64::from(a) * f64::from(b);
            let sum = product + f64::from(c);
            prop_assume!(sum.is_finite() && sum != 0.0);
            let error = error64(product, f64::from(c), sum);
            let (down, up, zero) = (direct::<DOWN>(sum, error), direct::<UP>(sum, error), direct::<ZERO>(sum, error));
            // `v` lies below the exact value, or on it
            let below = |v: f32| f64::from(v) < sum || f64::from(v) == sum && error >= 0.0;
            let exact = f64::from(down) == sum && error == 0.0;
            prop_assert!(below(down) && (exact || !below(step(down, true))), "{} is not next below {}", down, sum);
            prop_assert_eq!(up, if exact { down } else { step(down, true) });
            prop_assert_eq!(zero, if sum > 0.0 { down } else { up });
        }
    }
}
