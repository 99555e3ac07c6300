//! Searches over the batch size: the largest that fits, and the growth of the peak.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::trace::StepTrace;

use super::profile::BackendProfile;

/// The growth of a step's peak with its batch, as a line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BytesPerSample {
    /// The batches, in samples, that the line goes through.
    pub batches: [usize; 2],
    /// Bytes of the peak that do not depend on the batch: the line at a batch of 0.
    pub fixed_bytes: f64,
    /// Bytes that each sample adds.
    pub sample_bytes: f64,
}

impl StepTrace {
    /// The largest batch, in samples and up to `most`, whose predicted peak stays within `limit_bytes`. `None` when even one
    /// sample does not fit.
    ///
    /// The answer fits, and one sample more does not fit, unless the answer is `most`. The search doubles and then bisects, in about 2
    /// log2(answer) estimates. It relies on peaks that grow with the batch. There is one exception: a product on the CPU packs fewer
    /// bytes when its depth passes a multiple of 512. This is visible in f16, where a larger batch may fit again. The limit is taken
    /// without a margin; see [`fits_within`](crate::fits_within).
    ///
    /// # Errors
    /// [`Error::BatchSize`] when `most` is 0.
    pub fn largest_batch(
        &self,
        limit_bytes: u64,
        most: usize,
        profile: &BackendProfile,
    ) -> Result<Option<usize>, Error> {
        largest(most, |batch| Ok(self.estimate(batch, profile)?.peak_bytes <= limit_bytes))
    }

    /// The line through the predicted peaks of two batches in which the bytes that depend on the batch dominate.
    ///
    /// A peak is the highest of several that grow at different rates. The peak of the update does not grow at all and is the
    /// highest in small batches, where the line is too low; [`estimate`](Self::estimate) is right for any size.
    ///
    /// # Errors
    /// [`Error::BatchSize`] when the bytes of such a batch cannot be counted.
    pub fn bytes_per_sample(&self, profile: &BackendProfile) -> Result<BytesPerSample, Error> {
        /// The largest batch of this search.
        const MOST: usize = 1 << 16;
        let peak = |batch| Ok::<_, Error>(self.estimate(batch, profile)?.peak_bytes as f64);
        let (one, mut batch) = (peak(1)?, 2);
        while batch < MOST && peak(batch)? < 2.0 * one {
            batch *= 2;
        }
        let (near, far) = (peak(batch)?, peak(2 * batch)?);
        let sample_bytes = (far - near) / batch as f64;
        let fixed_bytes = near - sample_bytes * batch as f64;
        Ok(BytesPerSample { batches: [batch, 2 * batch], fixed_bytes, sample_bytes })
    }
}

/// The largest size up to `most` that fits, provided that all sizes below one that fits also fit.
pub(crate) fn largest(most: usize, mut fits: impl FnMut(usize) -> Result<bool, Error>) -> Result<Option<usize>, Error> {
    if most == 0 {
        return Err(Error::BatchSize { batch: 0 });
    }
    let mut fits = |size| match fits(size) {
        // A size whose bytes cannot be counted does not fit.
        Err(Error::BatchSize { .. }) => Ok(false),
        other => other,
    };
    if !fits(1)? {
        return Ok(None);
    }
    let mut low = 1;
    while low < most {
        let mut high = low.saturating_mul(2).min(most);
        if fits(high)? {
            low = high;
            continue;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            *(if fits(middle)? { &mut low } else { &mut high }) = middle;
        }
        break;
    }
    Ok(Some(low))
}
