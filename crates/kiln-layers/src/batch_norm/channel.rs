//! The arithmetic of one channel.

/// Statistics and parameters of a channel.
#[derive(Clone, Copy)]
pub(super) struct Channel {
    /// The mean as f32, and the remainder of the exact mean, so that a large mean does not cost accuracy.
    pub(super) mean: [f32; 2],
    /// The reciprocal of the deviation.
    pub(super) invstd: f32,
    pub(super) weight: f32,
    pub(super) bias: f32,
}

/// Gradients of a channel's parameters, and the numbers that give the gradient of a value x from the gradient g of its result: slope g +
/// product (x - mean) + constant.
#[derive(Clone, Copy)]
pub(super) struct ChannelGradient {
    pub(super) weight: f32,
    pub(super) bias: f32,
    pub(super) slope: f32,
    pub(super) product: f32,
    pub(super) constant: f32,
}

impl Channel {
    /// The factor of the normalised value of x: scale (x - mean) + shift, with the first part of the mean.
    pub(super) fn scale(self) -> f32 {
        self.weight * self.invstd
    }

    /// The summand of the normalised value; see [`Self::scale`].
    pub(super) fn shift(self) -> f32 {
        (f64::from(self.bias) - f64::from(self.scale()) * f64::from(self.mean[1])) as f32
    }

    /// Computes the gradients from the sums of g and of g (x - mean) over `count` values. `constant` says that the statistics do not
    /// depend on the values.
    pub(super) fn gradient(self, [sum, product]: [f64; 2], count: usize, constant: bool) -> ChannelGradient {
        let (invstd, rest, scale) = (f64::from(self.invstd), f64::from(self.mean[1]), f64::from(self.scale()));
        let product = product - rest * sum;
        let share = if constant { 0.0 } else { 1.0 / count as f64 };
        let projection = scale * product * share * invstd * invstd;
        ChannelGradient {
            weight: (product * invstd) as f32,
            bias: sum as f32,
            slope: self.scale(),
            product: -projection as f32,
            constant: (projection * rest - scale * sum * share) as f32,
        }
    }

    /// The factor and the summand that turn the normalised value z back into x - mean.
    pub(super) fn inverse(self) -> [f32; 2] {
        let (scale, shift) = (f64::from(self.scale()), f64::from(self.shift()));
        [(1.0 / scale) as f32, (-shift / scale) as f32]
    }
}
