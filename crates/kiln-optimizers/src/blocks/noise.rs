//! Noise that depends only on a seed, a step and the index of a value.

/// The noise of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noise {
    key: u32,
    stream: u32,
}

impl Noise {
    /// The noise of a step. Each pair of seed and step has other numbers.
    pub(crate) fn new(seed: u64, step: u64) -> Self {
        let key = mixed64(seed ^ mixed64(step));
        Self { key: key as u32, stream: (key >> 32) as u32 }
    }

    /// Independent noise of the same step, for another moment.
    pub(crate) fn other(self) -> Self {
        Self { key: mixed(self.key ^ 0x9E37_79B9), ..self }
    }

    /// The two words that determine the numbers, for a kernel that computes them.
    #[cfg(feature = "cube")]
    pub(crate) fn words(self) -> (u32, u32) {
        (self.key, self.stream)
    }

    /// A number in [0, 1) for the value at `index`, of 24 random bits. Indices that differ by 2^32 share it.
    #[inline(always)]
    pub(crate) fn at(self, index: u32) -> f32 {
        (mixed(mixed(index ^ self.key).wrapping_add(self.stream)) >> 8) as f32 * (1.0 / (1 << 24) as f32)
    }
}

/// A permutation of 32 bits in which every bit depends on every other (Wellons 2018, `lowbias32`).
#[inline(always)]
fn mixed(mut bits: u32) -> u32 {
    bits = (bits ^ bits >> 16).wrapping_mul(0x7FEB_352D);
    bits = (bits ^ bits >> 15).wrapping_mul(0x846C_A68B);
    bits ^ bits >> 16
}

/// A permutation of 64 bits in which every bit depends on every other (Steele et al. 2014, the last step of SplitMix64).
fn mixed64(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_uniform_and_does_not_repeat_between_steps_and_moments() {
        const COUNT: u32 = 100_000;
        let first = Noise::new(7, 1);
        for noise in [first, Noise::new(7, 2), Noise::new(8, 1), first.other()] {
            let numbers: Vec<f64> = (0..COUNT).map(|index| f64::from(noise.at(index))).collect();
            let mean = numbers.iter().sum::<f64>() / f64::from(COUNT);
            // The standard error of the mean is 9e-4.
            assert!((mean - 0.5).abs() < 5e-3, "{mean}");
            assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
            if noise != first {
                let with_first = (0..COUNT).map(|index| f64::from(noise.at(index) * first.at(index))).sum::<f64>();
                let covariance = with_first / f64::from(COUNT) - 0.25;
                assert!(covariance.abs() < 5e-3, "{covariance}");
            }
        }
    }
}
