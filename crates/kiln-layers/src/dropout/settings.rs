//! What a call of dropout is asked for.

/// Values of a task.
pub(super) const CHUNK: usize = 16 * 1024;

/// Dropout by a mask. The gradient of the input is computed from the gradient of the output like the output from the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dropout {
    pub(super) rate: Rate,
    /// The seed of the mask.
    pub(super) seed: u64,
}

/// The probability that a value is dropped, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate(pub(super) f64);

impl Rate {
    /// The factor of the values that stay.
    pub(super) fn factor(self) -> f32 {
        if self.0 < 1.0 { (1.0 / (1.0 - self.0)) as f32 } else { 0.0 }
    }

    /// Values whose random words are below this are dropped.
    pub(super) fn threshold(self) -> u64 {
        (self.0 * 2f64.powi(32)).round() as u64
    }
}

impl Dropout {
    /// The low and the high half of the seed.
    pub(super) fn words(self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }
}
