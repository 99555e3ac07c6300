//! The books of one GPU's memory: the bytes that are held, by whom, and their peaks. Touches no memory.

use serde::Serialize;

use super::code::{Answer, Code};

/// Bytes and counts of one GPU's memory. All sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ledger {
    /// Memory of the GPU.
    pub(crate) total: u64,
    /// Held by something that is not this process.
    pub(crate) taken: u64,
    /// Bytes that this process asked for and has not given back.
    pub(crate) live_bytes: u64,
    /// The most that `live_bytes` ever was.
    pub(crate) peak_bytes: u64,
    /// As `live_bytes`, each allocation rounded up to the granule.
    pub(crate) charged_bytes: u64,
    /// The most that `charged_bytes` ever was.
    pub(crate) peak_charged_bytes: u64,
    /// Allocations that are live.
    pub(crate) live: u64,
    /// The most that `live` ever was.
    pub(crate) peak_live: u64,
    /// Allocations that succeeded so far.
    pub(crate) allocations: u64,
    /// Allocations given back so far.
    pub(crate) frees: u64,
    /// Allocations that were refused because too little memory was free.
    pub(crate) refused: u64,
    /// Bytes of the largest allocation that succeeded.
    pub(crate) largest: u64,
    #[serde(skip)]
    granule: u64,
}

/// There is not enough memory to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("only {free} bytes are free")]
pub(crate) struct Short {
    /// Bytes that are free.
    pub(crate) free: u64,
}

impl Ledger {
    pub(crate) fn new(total: u64, taken: u64, granule: u64) -> Self {
        Self {
            total,
            taken: taken.min(total),
            live_bytes: 0,
            peak_bytes: 0,
            charged_bytes: 0,
            peak_charged_bytes: 0,
            live: 0,
            peak_live: 0,
            allocations: 0,
            frees: 0,
            refused: 0,
            largest: 0,
            granule: granule.max(1),
        }
    }

    /// Bytes that nobody holds.
    pub(crate) fn free(&self) -> u64 {
        self.total - self.taken - self.charged_bytes
    }

    /// Books an allocation; gives the bytes charged for it.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Answer<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let charge = bytes.checked_next_multiple_of(self.granule).filter(|charge| *charge <= self.free());
        let Some(charge) = charge else {
            self.refused += 1;
            return Err(Code::OUT_OF_MEMORY);
        };
        self.live_bytes += bytes;
        self.charged_bytes += charge;
        self.live += 1;
        self.allocations += 1;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.peak_charged_bytes = self.peak_charged_bytes.max(self.charged_bytes);
        self.peak_live = self.peak_live.max(self.live);
        self.largest = self.largest.max(bytes);
        Ok(charge)
    }

    /// Takes an allocation of `bytes`, charged as `charge`, out of the books.
    pub(crate) fn release(&mut self, bytes: u64, charge: u64) {
        self.live_bytes -= bytes;
        self.charged_bytes -= charge;
        self.live -= 1;
        self.frees += 1;
    }

    /// Something else takes `bytes` of the free memory.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Short> {
        let free = self.free();
        if bytes > free {
            return Err(Short { free });
        }
        self.taken += bytes;
        Ok(())
    }

    /// Something else gives back up to `bytes`; gives how many it had to give.
    pub(crate) fn give(&mut self, bytes: u64) -> u64 {
        let given = bytes.min(self.taken);
        self.taken -= given;
        given
    }

    /// Peaks start again from what is live now.
    pub(crate) fn reset_peaks(&mut self) {
        self.peak_bytes = self.live_bytes;
        self.peak_charged_bytes = self.charged_bytes;
        self.peak_live = self.live;
        self.largest = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rounding_counts_against_the_card_and_not_against_what_was_asked() {
        let mut ledger = Ledger::new(8 << 20, 0, 2 << 20);
        assert_eq!(ledger.reserve(1), Ok(2 << 20));
        assert_eq!(ledger.reserve((2 << 20) + 1), Ok(4 << 20));
        assert_eq!((ledger.live_bytes, ledger.charged_bytes, ledger.free()), ((2 << 20) + 2, 6 << 20, 2 << 20));
        assert_eq!(ledger.reserve((2 << 20) + 1), Err(Code::OUT_OF_MEMORY));
        assert_eq!(ledger.reserve(u64::MAX), Err(Code::OUT_OF_MEMORY));
        assert_eq!(ledger.reserve(0), Err(Code::INVALID_VALUE));
        assert_eq!((ledger.refused, ledger.live), (2, 2));
    }

    #[test]
    fn others_take_only_what_is_free() {
        let mut ledger = Ledger::new(100, 10, 1);
        ledger.reserve(50).expect("room");
        assert_eq!(ledger.take(41), Err(Short { free: 40 }));
        assert_eq!(ledger.take(40), Ok(()));
        assert_eq!(ledger.reserve(1), Err(Code::OUT_OF_MEMORY));
        assert_eq!(ledger.give(1000), 50);
        assert_eq!(ledger.free(), 50);
    }

    #[test]
    fn peaks_restart_where_the_memory_is() {
        let mut ledger = Ledger::new(100, 0, 1);
        let charge = ledger.reserve(60).expect("room");
        ledger.release(60, charge);
        ledger.reserve(10).expect("room");
        assert_eq!((ledger.peak_bytes, ledger.live_bytes), (60, 10));
        ledger.reset_peaks();
        assert_eq!((ledger.peak_bytes, ledger.peak_live), (10, 1));
    }

    proptest! {
        #[test]
        fn the_books_balance(granule in 1_u64..100, sizes in prop::collection::vec((1_u64..500, any::<bool>()), 1..60)) {
            let mut ledger = Ledger::new(4000, 100, granule);
            let mut held: Vec<(u64, u64)> = Vec::new();
            let mut peak = 0;
            for (bytes, free) in sizes {
                if free && !held.is_empty() {
                    let (bytes, charge) = held.swap_remove(bytes as usize % held.len());
                    ledger.release(bytes, charge);
                } else if let Ok(charge) = ledger.reserve(bytes) {
                    prop_assert!(charge >= bytes && charge < bytes + granule && charge % granule == 0);
                    held.push((bytes, charge));
                }
                let live: u64 = held.iter().map(|(bytes, _)| bytes).sum();
                peak = peak.max(live);
                prop_assert_eq!(ledger.live_bytes, live);
                prop_assert_eq!(ledger.charged_bytes + ledger.free() + 100, 4000);
                prop_assert_eq!(ledger.live, held.len() as u64);
                prop_assert_eq!(ledger.peak_bytes, peak);
            }
        }
    }
}
