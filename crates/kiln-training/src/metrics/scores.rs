//! Scores of classifiers and language models.

use burn::tensor::{Int, Tensor};

/// Counts how many of `logits_bc` `[B, C]` have their target `[B]` among the `k` largest. Returns a tensor of one element on the device.
/// A tie counts as wrong. So does NaN, both in the target's logit and in a logit that it is compared with.
pub fn top_k_correct(logits_bc: Tensor<2>, targets_b: Tensor<1, Int>, k: usize) -> Tensor<1, Int> {
    top_k_hits(logits_bc, targets_b, k).sum()
}

/// Whether each sample has its target among the `k` largest, by the rules of [`top_k_correct`]: `[B]`, 1 where it has and 0 where it
/// does not.
pub fn top_k_hits(logits_bc: Tensor<2>, targets_b: Tensor<1, Int>, k: usize) -> Tensor<1, Int> {
    let others = logits_bc.dims()[1].saturating_sub(k);
    let target_b1 = logits_bc.clone().gather(1, targets_b.unsqueeze_dim(1));
    // A comparison with NaN is false, so that NaN beside the target does not count as smaller.
    let smaller_b1 = logits_bc.lower(target_b1.clone()).int().sum_dim(1);
    let correct = smaller_b1.greater_equal_scalar(others as i64).bool_and(target_b1.is_nan().bool_not());
    correct.int().squeeze_dim(1)
}

/// Perplexity: e to the power of the mean cross-entropy in nats per token.
pub fn perplexity(nats_per_token: f64) -> f64 {
    nats_per_token.exp()
}

/// Cross-entropy of a text in bits per byte, which is comparable between tokenizers. `nats` is the cross-entropy of `bytes` bytes.
pub fn bits_per_byte(nats: f64, bytes: f64) -> f64 {
    nats / bytes / std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn correct(logits: [[f32; 4]; 3], targets: [i64; 3], k: usize) -> i64 {
        let device = Device::flex();
        let (logits, targets) = (Tensor::from_data(logits, &device), Tensor::from_data(targets, &device));
        top_k_correct(logits, targets, k).into_scalar()
    }

    #[test]
    fn counts_targets_among_the_largest() {
        let logits = [[0.1, 0.9, 0.5, 0.2], [3.0, 2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]];
        assert_eq!(correct(logits, [1, 0, 3], 1), 3);
        assert_eq!(correct(logits, [2, 1, 3], 1), 1);
        assert_eq!(correct(logits, [2, 1, 3], 2), 3);
        assert_eq!(correct(logits, [0, 3, 0], 4), 3);
    }

    #[test]
    fn ties_and_nan_are_not_correct() {
        const NAN: f32 = f32::NAN;
        assert_eq!(correct([[1.0; 4], [NAN; 4], [1.0, NAN, 0.0, 0.0]], [0, 0, 1], 1), 0);
        // NaN beside the target, before it and after it.
        let beside = [[1.0, NAN, 0.0, 0.0], [NAN, 1.0, 0.0, 0.0], [NAN, NAN, NAN, 1.0]];
        assert_eq!(correct(beside, [0, 1, 3], 1), 0);
        assert_eq!(correct(beside, [0, 1, 3], 2), 2, "it may be the largest, and the target the second");
        assert_eq!(correct([[NAN; 4]; 3], [0, 1, 2], 4), 0, "NaN is not among any number");
        let infinite = [[f32::INFINITY, 1.0, 0.0, NAN], [f32::INFINITY, 1.0, 0.0, 0.0], [f32::NEG_INFINITY; 4]];
        assert_eq!(correct(infinite, [0, 0, 0], 1), 1);
    }

    #[test]
    fn a_uniform_guess_over_bytes_costs_eight_bits() {
        assert!((bits_per_byte(256f64.ln() * 10.0, 10.0) - 8.0).abs() < 1e-12);
        assert!((perplexity(256f64.ln()) - 256.0).abs() < 1e-9);
    }
}
