//! The loss of one row, and the gradient of its logits.

use kiln_operations::cpu::math::exp;
use kiln_operations::simd;
use kiln_operations::simd::{LANES, maximum, pair_sums, sums};

simd! { pub(super) fn add(row: &mut [f32], bias: &[f32]) {
    row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
}}

simd! { fn largest(row: &[f32]) -> f32 { maximum(row) } }

simd! { fn total(row: &[f32], largest: f32) -> f32 { sums(row, |value| [value - largest, 0.0])[0] } }

simd! { fn weighted_total(row: &[f32], largest: f32, weights: &[f32]) -> f32 {
    pair_sums(row, weights, |value, weight| [(value - largest) * weight, 0.0])[0]
}}

simd! { fn exponentials(row: &mut [f32], largest: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut total = 0.0;
    let mut chunks = row.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - largest);
            lanes[lane] += chunk[lane];
        }
    }
    for value in chunks.into_remainder() {
        *value = exp(*value - largest);
        total += *value;
    }
    total + lanes.iter().sum::<f32>()
}}

simd! { fn times_and_add(row: &mut [f32], factor: f32, shift: f32) {
    row.iter_mut().for_each(|value| *value = value.mul_add(factor, shift));
}}

simd! { fn times_and_add_weighted(row: &mut [f32], factor: f32, shift: f32, weights: &[f32]) {
    row.iter_mut().zip(weights).for_each(|(value, weight)| *value = value.mul_add(factor, shift * weight));
}}

/// Values of the classes that all rows share.
pub(super) struct Classes<'a> {
    /// The bias, which is added to the logits; empty if there is none.
    pub(super) bias: &'a [f32],
    /// The weight of each class; empty if all weights are 1.
    pub(super) weights: &'a [f32],
    /// The sum of these weights.
    pub(super) total_weight: f64,
    pub(super) label_smoothing: f64,
}

impl Classes<'_> {
    /// The weight of a class.
    pub(super) fn weight(&self, class: usize) -> f64 {
        self.weights.get(class).map_or(1.0, |weight| f64::from(*weight))
    }

    /// The loss of a row from its logits, to which the bias is not yet added. With a `scale`, the logits are replaced by the gradient of
    /// `scale` times the loss.
    ///
    /// The loss is the sum over the classes of q (log Σ exp(logits) - logit), where q is the weight of the class times its
    /// probability after label smoothing; its gradient is Σq softmax(logits) - q. The largest logit is subtracted from all of them first, so
    /// that a small loss of large logits is not lost to rounding.
    pub(super) fn loss(&self, logits: &mut [f32], target: usize, scale: Option<f64>) -> f64 {
        if !self.bias.is_empty() {
            add(logits, self.bias);
        }
        let on_target = (1.0 - self.label_smoothing) * self.weight(target);
        let on_each = self.label_smoothing / logits.len() as f64;
        let mass = on_target + on_each * self.total_weight;
        let largest = largest(logits);
        let mut expected = on_target * f64::from(logits[target] - largest);
        if on_each > 0.0 {
            let all = match self.weights.is_empty() {
                true => total(logits, largest),
                false => weighted_total(logits, largest, self.weights),
            };
            expected += on_each * f64::from(all);
        }
        let sum = exponentials(logits, largest);
        if let Some(scale) = scale {
            let (factor, shift) = ((scale * mass / f64::from(sum)) as f32, (-scale * on_each) as f32);
            match self.weights.is_empty() || on_each == 0.0 {
                true => times_and_add(logits, factor, shift),
                false => times_and_add_weighted(logits, factor, shift, self.weights),
            }
            logits[target] -= (scale * on_target) as f32;
        }
        mass * f64::from(sum).ln() - expected
    }
}
