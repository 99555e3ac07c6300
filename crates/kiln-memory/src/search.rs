use serde::{Deserialize, Serialize};

use crate::Error;
use crate::profile::BackendProfile;
use crate::trace::StepTrace;

/// How the peak of a step grows with its batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BytesPerSample {
    /// The batches, in samples, that the line goes through.
    pub batches: [usize; 2],
    /// Bytes that the peak takes whatever the batch: where the line meets a batch of none.
    pub fixed_bytes: f64,
    /// Bytes that each sample adds.
    pub sample_bytes: f64,
}

impl StepTrace {
    /// The largest batch, in samples and up to `most`, whose predicted peak stays within `limit_bytes`. `None` when even one
    /// sample does not fit.
    ///
    /// The answer fits, and one sample more does not, unless the answer is `most`. It is found by doubling and then halving, in
    /// about 2 log2(answer) predictions, which relies on peaks that grow with the batch. All but one thing does: a product on the
    /// CPU packs less when its depth passes a multiple of 512, which shows in f16. A larger batch may fit there once more.
    ///
    /// # Errors
    /// [`Error::BatchSize`] when `most` is 0.
    pub fn largest_batch(
        &self,
        limit_bytes: u64,
        most: usize,
        profile: &BackendProfile,
    ) -> Result<Option<usize>, Error> {
        largest(most, |batch| Ok(self.predict(batch, profile)?.peak_bytes <= limit_bytes))
    }

    /// The line through the predicted peaks of two batches that are large enough for the batch to be most of what is used.
    ///
    /// A peak is the highest of several that grow differently: that of the update does not grow at all, and is the one that counts
    /// in small batches. So the line is too low there; [`predict`](Self::predict) answers for any size.
    ///
    /// # Errors
    /// [`Error::BatchSize`] when the bytes of such a batch cannot be counted.
    pub fn bytes_per_sample(&self, profile: &BackendProfile) -> Result<BytesPerSample, Error> {
        /// Where a step that does not grow with its batch is given up on.
        const MOST: usize = 1 << 16;
        let peak = |batch| Ok::<_, Error>(self.predict(batch, profile)?.peak_bytes as f64);
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

/// The largest size up to `most` that fits, if all below one that fits do.
pub(crate) fn largest(most: usize, mut fits: impl FnMut(usize) -> Result<bool, Error>) -> Result<Option<usize>, Error> {
    if most == 0 {
        return Err(Error::BatchSize { batch: 0 });
    }
    let mut fits = |size| match fits(size) {
        // What cannot be counted does not fit anywhere.
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
