//! Bytes alive at each operation of a step whose buffers change.

use std::ops::RangeInclusive;

use crate::predict::{Buffer, Prediction};

/// Bytes alive at each operation of a step.
pub(super) struct LiveCurve {
    live: Vec<u64>,
}

impl LiveCurve {
    /// The curve of a step whose buffers have other sizes.
    pub(super) fn of(prediction: &Prediction, bytes: impl Fn(&Buffer) -> u64) -> Self {
        let mut curve = Self { live: vec![0; prediction.operations.len()] };
        let mut change = vec![0i128; curve.live.len() + 1];
        for buffer in &prediction.buffers {
            let bytes = i128::from(bytes(buffer));
            change[buffer.born] += bytes;
            change[buffer.dies + 1] -= bytes;
        }
        let mut now = 0;
        for (live, change) in curve.live.iter_mut().zip(change) {
            now += change;
            *live = u64::try_from(now).unwrap_or(u64::MAX);
        }
        curve
    }

    /// Adds a buffer.
    pub(super) fn add(&mut self, alive: RangeInclusive<usize>, bytes: u64) {
        for live in self.live.iter_mut().take(alive.end() + 1).skip(*alive.start()) {
            *live = live.saturating_add(bytes);
        }
    }

    /// Removes one of the buffers.
    pub(super) fn remove(&mut self, alive: RangeInclusive<usize>, bytes: u64) {
        for live in self.live.iter_mut().take(alive.end() + 1).skip(*alive.start()) {
            *live = live.saturating_sub(bytes);
        }
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.live.iter().copied().max().unwrap_or(0)
    }

    /// The first operation at the peak.
    pub(super) fn peak_at(&self) -> usize {
        let peak = self.peak_bytes();
        self.live.iter().position(|live| *live == peak).unwrap_or(0)
    }
}
