use burn::tensor::{Device, Distribution, Int, Tensor};

/// Draws a seed from the device's own random numbers, so that they stay a function of whatever the device was seeded with.
/// burn's random state can be set and not read, hence the detour.
pub(crate) fn draw(device: &Device) -> u64 {
    let device = device.clone().inner();
    let drawn = Tensor::<1, Int>::random([2], Distribution::Uniform(0.0, f64::from(i32::MAX)), &device);
    drawn.into_data().iter::<i64>().fold(0, |seed, part| (seed << 31) ^ part as u64)
}

/// Runs `f` from `seed`, and leaves the devices with numbers that follow from `seed` and `after` and that `f` has not seen.
pub(crate) fn seeded<R>(devices: &[Device], seed: u64, after: u64, f: impl FnOnce() -> R) -> R {
    devices.iter().for_each(|device| device.seed(seed));
    let result = f();
    devices.iter().for_each(|device| device.seed(derive(seed, after)));
    result
}

/// Another seed from a seed and a number (SplitMix64).
pub(crate) fn derive(seed: u64, number: u64) -> u64 {
    let mut z = seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
