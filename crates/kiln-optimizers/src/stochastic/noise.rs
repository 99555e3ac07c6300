//! Noise that depends only on its position: 16 bits for each element of each step.

/// The odd factor of each round.
pub(super) const FACTORS: [u32; 6] = [0xD2B5, 0xCD9F, 0xA6E5, 0xF14B, 0xB8D3, 0xE35D];

/// The key of a parameter's noise in one step. With the element's index it determines the noise.
///
/// Noise is a Feistel network over the element's index, in the manner of Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2,
/// 3"): for a key, all 2^32 indices have different outputs, of which 16 bits are used. Products are of 16 bits by 16, so that devices
/// whose integers do not wrap around compute the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(pub(super) [u32; FACTORS.len()]);

impl Key {
    /// The key of a step. Parameters with the same seed have different `salt`.
    pub(super) fn new(seed: u64, salt: u64, step: u64) -> Self {
        let mut state = mixed(mixed(mixed(seed) ^ salt) ^ step);
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            (mixed(state) >> 48) as u32
        }))
    }

    /// 16 bits for an element.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the compiler vectorises over elements if rounds go by index")]
    pub(super) fn noise(self, index: u32) -> u32 {
        let (mut left, mut right) = (index >> 16, index & 0xFFFF);
        for round in 0..FACTORS.len() {
            let mixed = (right ^ self.0[round]).wrapping_mul(FACTORS[round]) >> 8;
            (left, right) = (right, left ^ (mixed & 0xFFFF));
        }
        right
    }
}

/// SplitMix64's output function (Steele et al. 2014).
pub(super) fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u32 = 1 << 18;

    /// Pearson's statistic of samples over as many equally likely classes, in standard deviations from its mean.
    fn deviation(classes: usize, samples: impl Iterator<Item = usize>) -> f64 {
        let mut counts = vec![0_f64; classes];
        samples.for_each(|class| counts[class] += 1.0);
        let expected = counts.iter().sum::<f64>() / classes as f64;
        let statistic: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
        let freedom = classes as f64 - 1.0;
        (statistic - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn noise_is_uniform_and_independent_of_place_and_step() {
        let high = |noise: u32| (noise >> 12) as usize;
        let low = |noise: u32| (noise & 0xF) as usize;
        for (seed, salt, step) in [(0, 0, 0), (1, 0, 1), (7, 3, 100), (u64::MAX, 9, 12_345)] {
            let key = Key::new(seed, salt, step);
            let indices = 0..COUNT;
            let single = deviation(4096, indices.clone().map(|index| key.noise(index) as usize >> 4));
            let lows = deviation(4096, indices.clone().map(|index| key.noise(index) as usize & 0xFFF));
            let mut worst = [single, lows].map(f64::abs).into_iter().fold(0.0, f64::max);
            for part in [high, low] {
                for distance in [1, 2, 16, 64, 256, 4096, 65_536] {
                    let pairs =
                        indices.clone().map(|index| part(key.noise(index)) * 16 + part(key.noise(index + distance)));
                    worst = deviation(256, pairs).abs().max(worst);
                }
                for other in
                    [Key::new(seed, salt, step + 1), Key::new(seed, salt + 1, step), Key::new(!seed, salt, step)]
                {
                    let pairs = indices.clone().map(|index| part(key.noise(index)) * 16 + part(other.noise(index)));
                    worst = deviation(256, pairs).abs().max(worst);
                }
            }
            // Of 84 statistics in all, one is beyond 5 standard deviations by chance about once in 10,000 choices of seeds.
            assert!(worst < 5.0, "({seed}, {salt}, {step}): {worst}");
        }
    }

    #[test]
    fn one_element_gets_uniform_noise_over_the_steps() {
        for index in [0, 1, 77, 1 << 20] {
            let over_steps = (0..u64::from(COUNT)).map(|step| Key::new(5, 1, step).noise(index) as usize >> 8);
            assert!(deviation(256, over_steps).abs() < 5.0, "{index}");
        }
    }

    #[test]
    fn noise_is_always_the_same() {
        let key = Key::new(1, 2, 3);
        let noise: Vec<u32> = [0, 1, 2, u32::MAX].map(|index| key.noise(index)).to_vec();
        assert_eq!(noise, RECORDED);
        assert!(key.noise(1 << 31) <= 0xFFFF);
    }

    /// Runs resume with the noise that they began with: this must not change.
    const RECORDED: [u32; 4] = [42109, 62211, 61638, 5354];
}
