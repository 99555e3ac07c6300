//! Random numbers that are found by their position: SplitMix64 (Steele, Lea, Flood 2014), whose state is a counter.

use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;

/// The distance between two states of SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Uniform 64-bit numbers, each found by its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    start: u64,
}

impl Draws {
    pub(super) fn new(mut rng: impl Rng) -> Self {
        Self { start: rng.next_u64() }
    }

    pub(super) fn at(self, position: u64) -> u64 {
        // The generator adds one step before it mixes.
        SplitMix64::seed_from_u64(self.start.wrapping_add(position.wrapping_mul(STEP))).next_u64()
    }
}

/// The finaliser of SplitMix64: mixes the bits of `z`.
pub(super) fn mix(z: u64) -> u64 {
    SplitMix64::seed_from_u64(z.wrapping_sub(STEP)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from the reference implementation. Orders of saved runs depend on every bit.
    #[test]
    fn the_numbers_are_those_that_were_recorded() {
        let draws = Draws { start: 0 };
        assert_eq!(
            [0, 1, 2].map(|position| draws.at(position)),
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f,]
        );
        assert_eq!(
            [0, 1, u64::MAX, 0x0123_4567_89ab_cdef].map(mix),
            [0x0000_0000_0000_0000, 0x5692_161d_100b_05e5, 0xb4d0_55fc_f2cb_bd7b, 0xb2c0_58e4_ebb5_112c]
        );
        assert_eq!(Draws { start: u64::MAX - 4 }.at(u64::MAX), 0x47f5_41c0_f2a7_a74e);
    }
}
