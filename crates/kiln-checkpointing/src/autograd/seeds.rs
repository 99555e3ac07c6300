//! Seeds of random numbers that a segment draws the same in both passes.

use burn::tensor::{Device, Distribution, Int, Tensor};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Draws a seed from the device's own random numbers, so that all later numbers stay a function of the device's seed. burn's
/// random state can be set but not read.
pub(crate) fn draw(device: &Device) -> u64 {
    let device = device.clone().inner();
    let drawn = Tensor::<1, Int>::random([2], Distribution::Uniform(0.0, f64::from(i32::MAX)), &device);
    drawn.into_data().iter::<i64>().fold(0, |seed, part| (seed << 31) ^ part as u64)
}

/// Runs `f` with the devices seeded by `seed`, and seeds them afterwards from `seed` and `after`, so that later operations draw
/// other numbers than `f` did.
pub(crate) fn seeded<R>(devices: &[Device], seed: u64, after: u64, f: impl FnOnce() -> R) -> R {
    devices.iter().for_each(|device| device.seed(seed));
    let result = f();
    devices.iter().for_each(|device| device.seed(derive(seed, after)));
    result
}

/// A seed that is a function of a seed and a number.
pub(crate) fn derive(seed: u64, number: u64) -> u64 {
    /// The distance between two states of SplitMix64; the generator adds it before it mixes a state.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let state = seed ^ number.wrapping_add(1).wrapping_mul(STEP);
    SplitMix64::seed_from_u64(state.wrapping_sub(STEP)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::derive;

    /// Runs are reproducible across versions: these are the values of the first release.
    #[test]
    fn derived_seeds_are_those_recorded() {
        for (seed, number, expected) in RECORDED {
            assert_eq!(derive(seed, number), expected, "derive({seed:#x}, {number})");
        }
    }

    const RECORDED: [(u64, u64, u64); 8] = [
        (0, 0, 0xe220a8397b1dcdaf),
        (0, 1, 0x6e789e6aa1b965f4),
        (1, 0, 0xe4d971771b652c20),
        (42, 7, 0xb4346c5a4ac089c3),
        (0xdeadbeef, 23, 0x6495a99be3058a74),
        (u64::MAX, 0, 0xde0a564cbcd060c4),
        (u64::MAX, u64::MAX, 0xb4d055fcf2cbbd7b),
        (0x123456789abcdef, u64::MAX - 1, 0x86cce50f6507f95c),
    ];
}
