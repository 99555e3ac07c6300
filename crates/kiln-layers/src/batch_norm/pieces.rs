//! The loops over pieces. Each value of a piece has its own factors, so that pieces may hold many channels.

use super::settings::{Bend, HARD_SWISH};
use kiln_operations::simd;

impl Bend {
    /// Applies the activation. NaN stays NaN.
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        let x = straight(x, x, self.slope);
        if x > self.ceiling { self.ceiling } else { x }
    }

    /// The gradient through the activation. `z` has the sign of the activation's input; it is the input or the output.
    #[inline(always)]
    fn gradient(self, gradient: f32, z: f32) -> f32 {
        let gradient = straight(gradient, z, self.slope);
        if z >= self.ceiling { 0.0 } else { gradient }
    }
}

/// Hard-swish. NaN stays NaN.
#[inline(always)]
fn hard_swish(z: f32) -> f32 {
    let y = z * (z + HARD_SWISH) * (0.5 / HARD_SWISH);
    let y = if z >= HARD_SWISH { z } else { y };
    if z <= -HARD_SWISH { 0.0 } else { y }
}

/// The gradient through hard-swish at the value z.
#[inline(always)]
fn hard_swish_gradient(gradient: f32, z: f32) -> f32 {
    let slope = z.mul_add(1.0 / HARD_SWISH, 0.5);
    let slope = if z >= HARD_SWISH { 1.0 } else { slope };
    if z <= -HARD_SWISH { 0.0 } else { gradient * slope }
}

/// x if `sign` is positive, otherwise `slope` times x.
#[inline(always)]
fn straight(x: f32, sign: f32, slope: f32) -> f32 {
    // Zero times infinity would not be zero.
    let low = if slope == 0.0 { 0.0 } else { slope * x };
    if sign <= 0.0 { low } else { x }
}

simd! {
    /// Adds x - shift and its square.
    pub(super) fn add_moments(sums: &mut [f32], squares: &mut [f32], x: &[f32], shift: &[f32]) {
        for (((sum, square), x), shift) in sums.iter_mut().zip(squares).zip(x).zip(shift) {
            let x = x - shift;
            *sum += x;
            *square = x.mul_add(x, *square);
        }
    }
}

/// Factors and summands of a piece's values.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    /// The first parts of the means.
    pub(super) mean: &'a [f32],
    pub(super) scale: &'a [f32],
    pub(super) shift: &'a [f32],
}

#[inline(always)]
fn normalise_by(values: &mut [f32], line: Line<'_>, activation: impl Fn(f32) -> f32) {
    for (((value, mean), scale), shift) in values.iter_mut().zip(line.mean).zip(line.scale).zip(line.shift) {
        let z = scale.mul_add(*value - mean, *shift);
        *value = activation(z);
    }
}

simd! {
    /// Applies the norm and the activation.
    pub(super) fn normalise(values: &mut [f32], line: Line<'_>, bend: Bend) {
        match bend.hard_swish {
            true => normalise_by(values, line, hard_swish),
            false => normalise_by(values, line, #[inline(always)] |z| bend.value(z)),
        }
    }
}

simd! {
    /// Applies the norm, adds the residual, and applies the activation, which is not hard-swish.
    pub(super) fn normalise_add(values: &mut [f32], residual: &[f32], line: Line<'_>, bend: Bend) {
        let lines = line.mean.iter().zip(line.scale).zip(line.shift);
        for ((value, residual), ((mean, scale), shift)) in values.iter_mut().zip(residual).zip(lines) {
            let z = scale.mul_add(*value - mean, *shift) + residual;
            *value = bend.value(z);
        }
    }
}

#[inline(always)]
fn add_by(
    gradient: &mut [f32],
    [sums, products]: [&mut [f32]; 2],
    x: &[f32],
    line: Line<'_>,
    through: impl Fn(f32, f32) -> f32,
) {
    let lines = line.mean.iter().zip(line.scale).zip(line.shift);
    let sums = sums.iter_mut().zip(products);
    for (((gradient, (sum, product)), x), ((mean, scale), shift)) in gradient.iter_mut().zip(sums).zip(x).zip(lines) {
        let centred = x - mean;
        *gradient = through(*gradient, scale.mul_add(centred, *shift));
        *sum += *gradient;
        *product = gradient.mul_add(centred, *product);
    }
}

simd! {
    /// Computes the gradient before the activation, and adds it and its product with x - mean to the sums. The activation's input is
    /// computed from x as in the forward pass.
    pub(super) fn add_by_input(
        gradient: &mut [f32], sums: &mut [f32], products: &mut [f32], x: &[f32], line: Line<'_>, bend: Bend
    ) {
        match bend.hard_swish {
            true => add_by(gradient, [sums, products], x, line, hard_swish_gradient),
            false => add_by(gradient, [sums, products], x, line, #[inline(always)] |g, z| bend.gradient(g, z)),
        }
    }
}

/// The numbers that give x - mean from a kept value v: factor v + summand. If v is not positive, it is divided by the slope first.
#[derive(Clone, Copy)]
pub(super) struct Inverse<'a> {
    pub(super) factor: &'a [f32],
    pub(super) summand: &'a [f32],
    /// The reciprocal of the slope; 1 if the kept value is x.
    pub(super) slope: f32,
}

simd! {
    /// Does the work of `add_by_input` for a kept output y, whose sign is that of the activation's input. The activation is not hard-swish.
    pub(super) fn add_by_output(
        gradient: &mut [f32], sums: &mut [f32], products: &mut [f32], kept: &[f32], y: &[f32], inverse: Inverse<'_>, bend: Bend
    ) {
        let lines = inverse.factor.iter().zip(inverse.summand);
        let sums = sums.iter_mut().zip(products);
        for ((((gradient, (sum, product)), kept), y), (factor, summand)) in
            gradient.iter_mut().zip(sums).zip(kept).zip(y).zip(lines)
        {
            let centred = factor.mul_add(straight(*kept, *kept, inverse.slope), *summand);
            *gradient = bend.gradient(*gradient, *y);
            *sum += *gradient;
            *product = gradient.mul_add(centred, *product);
        }
    }
}

simd! {
    /// Computes the gradient before the activation, which is not hard-swish.
    pub(super) fn mask(gradient: &mut [f32], y: &[f32], bend: Bend) {
        gradient.iter_mut().zip(y).for_each(|(gradient, y)| *gradient = bend.gradient(*gradient, *y));
    }
}

simd! {
    /// The gradient of x, from the gradient before the activation.
    pub(super) fn combine(gradient: &mut [f32], kept: &[f32], inverse: Inverse<'_>, slope: &[f32], product: &[f32], constant: &[f32]) {
        let lines = inverse.factor.iter().zip(inverse.summand).zip(slope).zip(product).zip(constant);
        for ((gradient, kept), ((((factor, summand), slope), product), constant)) in gradient.iter_mut().zip(kept).zip(lines) {
            let centred = factor.mul_add(straight(*kept, *kept, inverse.slope), *summand);
            *gradient = slope.mul_add(*gradient, product.mul_add(centred, *constant));
        }
    }
}

simd! {
    /// The gradient of x if the statistics are constant.
    pub(super) fn scale(gradient: &mut [f32], scale: &[f32]) {
        gradient.iter_mut().zip(scale).for_each(|(gradient, scale)| *gradient *= scale);
    }
}
