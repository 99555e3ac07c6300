//! Exponential and normal distribution, written so that the compiler vectorises them.

/// The exponential by Cephes' polynomial, within 1e-7 of the exact value for arguments in [-87, 88]. It is 0 below and infinity above.
/// NaN stays NaN.
#[inline(always)]
pub fn exp(argument: f32) -> f32 {
    /// Adding this number rounds to an integer, which is then in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let x = argument.clamp(-87.0, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let power = shifted - ROUND;
    // The remainder of x. It is computed with ln 2 in two parts.
    let rest = power.mul_add(2.121_944_4e-4, power.mul_add(-0.693_359_4, x));
    let mut sum = 1.987_569_1e-4f32;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        sum = sum.mul_add(rest, coefficient);
    }
    let value = sum.mul_add(rest * rest, rest) + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_shl(23);
    let value = f32::from_bits(value.to_bits().wrapping_add(exponent));
    let value = if argument < -87.0 { 0.0 } else { value };
    let value = if argument > 88.0 { f32::INFINITY } else { value };
    // Adding the exponent to the bits of a NaN may make it a number.
    if argument.is_nan() { argument } else { value }
}

/// The normal distribution function of `x`, within 3e-7, and exp(-x²/2). Abramowitz and Stegun 7.1.26.
#[inline(always)]
pub fn normal_cdf(x: f32) -> (f32, f32) {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(0.327_591_1, 1.0);
    let density = exp(-(z * z));
    let mut sum = 1.061_405_4f32;
    for coefficient in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
        sum = sum.mul_add(t, coefficient);
    }
    let tail = 0.5 * sum * t * density;
    (if x < 0.0 { tail } else { 1.0 - tail }, density)
}

/// The logistic function.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::{exp, normal_cdf, sigmoid};

    #[test]
    fn the_exponential_is_within_its_bounds_and_keeps_nan() {
        for step in -870_000..=880_000 {
            let argument = step as f32 * 1e-4;
            let exact = f64::from(argument).exp();
            assert!((f64::from(exp(argument)) / exact - 1.0).abs() < 1.2e-7, "{argument}");
        }
        assert_eq!(
            [-88.0, f32::NEG_INFINITY, 0.0, 89.0, f32::INFINITY].map(exp),
            [0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY]
        );
        for bits in [0x7fc0_0000u32, 0xffc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xff80_1234, 0xffff_ffff] {
            let nan = f32::from_bits(bits);
            assert!(exp(nan).is_nan() && sigmoid(nan).is_nan() && normal_cdf(nan).0.is_nan(), "{bits:x}");
        }
    }
}
