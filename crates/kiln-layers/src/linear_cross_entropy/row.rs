//! The loss of one row, block by block of its classes, and the gradient of its logits.

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
    bias: &'a [f32],
    /// The weight of each class; empty if all weights are 1.
    weights: &'a [f32],
    /// The sum of these weights.
    total_weight: f64,
    pub(super) count: usize,
    label_smoothing: f64,
}

/// What is known of a row after blocks of classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSums {
    /// The largest logit.
    pub(super) largest: f32,
    /// The sum of exp(logit - largest).
    pub(super) sum: f64,
    /// The logit of the target.
    target: f32,
    /// With label smoothing: the sum of the weights of the classes.
    weight: f64,
    /// With label smoothing: the sum of logit - largest, each times the weight of its class.
    weighted: f64,
}

impl Default for RowSums {
    fn default() -> Self {
        Self { largest: f32::NEG_INFINITY, sum: 0.0, target: f32::NEG_INFINITY, weight: 0.0, weighted: 0.0 }
    }
}

impl RowSums {
    /// Adds the next block, whose sums are relative to the `largest` logit of the block.
    fn add(&mut self, largest: f32, sum: f64, weight: f64, weighted: f64) {
        let of_all = self.largest.max(largest);
        if of_all == f32::NEG_INFINITY {
            return;
        }
        // What is relative to -inf is nothing yet.
        let shift =
            |largest: f32| if largest == f32::NEG_INFINITY { 0.0 } else { f64::from(largest) - f64::from(of_all) };
        let (before, of_block) = (shift(self.largest), shift(largest));
        let sum = if largest == f32::NEG_INFINITY { 0.0 } else { sum };
        self.sum = self.sum * before.exp() + sum * of_block.exp();
        self.weighted = self.weighted + self.weight * before + (weighted + weight * of_block);
        self.weight += weight;
        self.largest = of_all;
    }
}

impl<'a> Classes<'a> {
    pub(super) fn new(bias: &'a [f32], weights: &'a [f32], count: usize, label_smoothing: f32) -> Self {
        let total_weight = match weights.is_empty() {
            true => count as f64,
            false => weights.iter().map(|weight| f64::from(*weight)).sum(),
        };
        Self { bias, weights, total_weight, count, label_smoothing: label_smoothing.into() }
    }

    /// The weight of a class.
    pub(super) fn weight(&self, class: usize) -> f64 {
        self.weights.get(class).map_or(1.0, |weight| f64::from(*weight))
    }

    /// Probabilities after label smoothing, times the weights of their classes: of the target, of each class before its weight, and of all.
    fn mass(&self, target: usize) -> [f64; 3] {
        let on_target = (1.0 - self.label_smoothing) * self.weight(target);
        let on_each = self.label_smoothing / self.count as f64;
        [on_target, on_each, on_target + on_each * self.total_weight]
    }

    /// Adds the logits of the classes from `first` on to the sums of a row, and replaces each by exp(logit - largest). The bias is added first.
    /// Returns the largest logit. It is subtracted from all of them first, so that a small loss of large logits is not lost to rounding.
    pub(super) fn add(&self, logits: &mut [f32], first: usize, target: usize, sums: &mut RowSums) -> f32 {
        let classes = first..first + logits.len();
        if !self.bias.is_empty() {
            add(logits, &self.bias[classes.clone()]);
        }
        let largest = largest(logits);
        if classes.contains(&target) {
            sums.target = logits[target - first];
        }
        let (mut weight, mut weighted) = (0.0, 0.0);
        if self.label_smoothing > 0.0 {
            match self.weights.get(classes) {
                None => (weight, weighted) = (logits.len() as f64, f64::from(total(logits, largest))),
                Some(weights) => {
                    weight = weights.iter().map(|weight| f64::from(*weight)).sum();
                    weighted = f64::from(weighted_total(logits, largest, weights));
                }
            }
        }
        let sum = exponentials(logits, largest);
        sums.add(largest, sum.into(), weight, weighted);
        largest
    }

    /// The loss of a row: the sum over the classes of q (log Σ exp(logits) - logit), where q is the weight of the class times its
    /// probability after label smoothing.
    pub(super) fn loss(&self, sums: &RowSums, target: usize) -> f64 {
        let [on_target, on_each, mass] = self.mass(target);
        let mut expected = on_target * f64::from(sums.target - sums.largest);
        if on_each > 0.0 {
            expected += on_each * sums.weighted;
        }
        mass * sums.sum.ln() - expected
    }

    /// Replaces what [`add`](Self::add) left of the logits from `first` on, with their `largest`, by the gradient of `scale` times the loss of
    /// the row: Σq softmax(logits) - q. The row's largest logit and sum, which is rounded to f32, are those of all classes.
    pub(super) fn gradient(
        &self,
        (logits, first, largest): (&mut [f32], usize, f32),
        target: usize,
        (of_row, sum): (f32, f32),
        scale: f64,
    ) {
        let [on_target, on_each, mass] = self.mass(target);
        let factor = match largest == f32::NEG_INFINITY && of_row > largest {
            true => {
                logits.fill(0.0);
                0.0
            }
            false => (scale * mass / f64::from(sum) * (f64::from(largest) - f64::from(of_row)).exp()) as f32,
        };
        let shift = (-scale * on_each) as f32;
        let classes = first..first + logits.len();
        match self.weights.get(classes.clone()).filter(|_| on_each > 0.0) {
            None => times_and_add(logits, factor, shift),
            Some(weights) => times_and_add_weighted(logits, factor, shift, weights),
        }
        if classes.contains(&target) {
            logits[target - first] -= (scale * on_target) as f32;
        }
    }
}
