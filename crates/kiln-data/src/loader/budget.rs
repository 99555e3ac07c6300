//! The byte budget of a loader: it admits batches and images, and makes them wait.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The host bytes that a loader may hold: a part for batches, the rest for images that are being decoded.
///
/// A batch is admitted before it is begun, and its bytes are free when the consumer asks for the next one. An image is
/// admitted before it is decoded, with the bytes of its plan, which are free when it is resized. The two parts are separate
/// because the consumer takes batches in order: if later batches could take the bytes that an image of an earlier one needs,
/// both would wait for ever.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ledger: Mutex<Ledger>,
    freed: Condvar,
}

/// The order of waiting images: by the batch within the epoch, then by arrival.
type Turn = (usize, u64);

/// The decisions of a [`Budget`], without threads.
#[derive(Debug)]
struct Ledger {
    /// Batches: the most bytes, and the bytes in flight.
    batch_limit: u64,
    queued: u64,
    /// Images: the most bytes of one, and the bytes being decoded.
    image_limit: u64,
    /// The most bytes of images at a time: fewer than `image_limit` when the workers cannot take as many.
    images_limit: u64,
    decoding: u64,
    image_peak: u64,
    peak: u64,
    waiting: BTreeSet<Turn>,
    arrivals: u64,
}

impl Ledger {
    /// Batches get `wanted` bytes, at most half of the budget. Images take `images` bytes at most at a time.
    fn new(limit: u64, wanted: u64, images: u64) -> Self {
        let batch_limit = wanted.min(limit / 2);
        let image_limit = limit - batch_limit;
        let images_limit = image_limit.min(images);
        Self {
            batch_limit,
            queued: 0,
            image_limit,
            images_limit,
            decoding: 0,
            image_peak: 0,
            peak: 0,
            waiting: BTreeSet::new(),
            arrivals: 0,
        }
    }

    fn admits_batch(&self, bytes: u64) -> bool {
        self.queued.saturating_add(bytes) <= self.batch_limit
    }

    /// The oldest batch is first, so that small images do not delay a large one for ever. An image is always admitted when no
    /// other is being decoded.
    fn admits_image(&self, bytes: u64, turn: Turn) -> bool {
        let fits = self.decoding.saturating_add(bytes) <= self.images_limit;
        self.waiting.first() == Some(&turn) && (fits || self.decoding == 0)
    }

    fn arrive(&mut self, batch: usize) -> Turn {
        self.arrivals += 1;
        let turn = (batch, self.arrivals);
        self.waiting.insert(turn);
        turn
    }

    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.queued + self.decoding);
        self.image_peak = self.image_peak.max(self.decoding);
    }
}

impl Budget {
    /// `limit` bytes, of which batches get `wanted` bytes, at most half. Images take at most `images` bytes at a time; an
    /// image that takes more is decoded alone.
    pub(crate) fn new(limit: u64, wanted: u64, images: u64) -> Self {
        let ledger = Mutex::new(Ledger::new(limit, wanted, images));
        Self { shared: Arc::new(Shared { ledger, freed: Condvar::new() }) }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most bytes of all batches.
    pub(crate) fn batch_limit(&self) -> u64 {
        self.ledger().batch_limit
    }

    /// The bytes of the batches in flight now.
    pub(crate) fn queued(&self) -> u64 {
        self.ledger().queued
    }

    /// The most bytes of all images that are being decoded.
    pub(crate) fn images_limit(&self) -> u64 {
        self.ledger().images_limit
    }

    /// The most bytes of one image.
    pub(crate) fn image_limit(&self) -> u64 {
        self.ledger().image_limit
    }

    /// Admits a batch if its bytes are free, or if no batch of its epoch is in flight. All batches of an epoch count in the
    /// same `own`: an epoch never waits for another one, which may belong to the same thread.
    pub(crate) fn try_queue(&self, bytes: u64, own: &Arc<AtomicUsize>) -> Option<Queued> {
        self.admit(&mut self.ledger(), bytes, own)
    }

    /// As [`try_queue`](Self::try_queue), and waits until another batch of the epoch frees its bytes. `None` when
    /// `cancelled`. Not for the consumer's thread, which frees them.
    pub(crate) fn queue(&self, bytes: u64, own: &Arc<AtomicUsize>, cancelled: &AtomicBool) -> Option<Queued> {
        let mut ledger = self.ledger();
        while !cancelled.load(SeqCst) {
            if let Some(room) = self.admit(&mut ledger, bytes, own) {
                return Some(room);
            }
            ledger = self.shared.freed.wait(ledger).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn admit(&self, ledger: &mut Ledger, bytes: u64, own: &Arc<AtomicUsize>) -> Option<Queued> {
        (own.load(SeqCst) == 0 || ledger.admits_batch(bytes)).then(|| {
            ledger.queued += bytes;
            ledger.note_peak();
            own.fetch_add(1, SeqCst);
            Queued { budget: self.clone(), bytes, own: own.clone() }
        })
    }

    /// Waits until an image of batch number `batch` may be decoded. `None` when `cancelled`.
    pub(crate) fn admit_image(&self, bytes: u64, batch: usize, cancelled: &AtomicBool) -> Option<Decoding> {
        let mut ledger = self.ledger();
        let turn = ledger.arrive(batch);
        while !cancelled.load(SeqCst) && !ledger.admits_image(bytes, turn) {
            ledger = self.shared.freed.wait(ledger).unwrap_or_else(PoisonError::into_inner);
        }
        ledger.waiting.remove(&turn);
        let admitted = !cancelled.load(SeqCst);
        if admitted {
            ledger.decoding += bytes;
            ledger.note_peak();
        }
        drop(ledger);
        self.shared.freed.notify_all(); // the next in turn may fit as well
        admitted.then(|| Decoding { budget: self.clone(), bytes })
    }

    /// Wakes all waiting threads, which check whether they are cancelled.
    pub(crate) fn wake(&self) {
        drop(self.ledger());
        self.shared.freed.notify_all();
    }

    /// The bytes in flight now, and their peaks.
    pub(crate) fn in_flight(&self) -> InFlight {
        let ledger = self.ledger();
        InFlight { bytes: ledger.queued + ledger.decoding, peak: ledger.peak, image_peak: ledger.image_peak }
    }
}

/// The bytes of a [`Budget`] that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlight {
    pub(crate) bytes: u64,
    pub(crate) peak: u64,
    /// The peak of images alone.
    pub(crate) image_peak: u64,
}

/// The bytes of a batch, which are free when this is dropped.
#[derive(Debug)]
pub(crate) struct Queued {
    budget: Budget,
    bytes: u64,
    own: Arc<AtomicUsize>,
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut ledger = self.budget.ledger();
        ledger.queued -= self.bytes;
        self.own.fetch_sub(1, SeqCst);
        drop(ledger);
        self.budget.shared.freed.notify_all();
    }
}

/// The bytes of an image that is being decoded, which are free when this is dropped.
#[derive(Debug)]
pub(crate) struct Decoding {
    budget: Budget,
    bytes: u64,
}

impl Drop for Decoding {
    fn drop(&mut self) {
        self.budget.ledger().decoding -= self.bytes;
        self.budget.shared.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    proptest! {
        /// The image of the batch that the consumer waits for is admitted, whatever batches are in flight.
        #[test]
        fn an_image_never_waits_for_batches(
            limit in 2u64..1000, wanted in 0u64..2000, batches in prop::collection::vec(1u64..600, 0..20),
            image in 0.0f64..=1.0,
        ) {
            let mut ledger = Ledger::new(limit, wanted, u64::MAX);
            for bytes in batches {
                if ledger.admits_batch(bytes) {
                    ledger.queued += bytes;
                }
            }
            let bytes = (ledger.image_limit as f64 * image) as u64;
            let turn = ledger.arrive(0);
            prop_assert!(ledger.admits_image(bytes, turn));
            prop_assert!(ledger.queued + bytes <= limit);
        }
    }

    #[test]
    fn images_of_the_oldest_batch_are_first_and_small_images_do_not_pass_them() {
        let mut ledger = Ledger::new(160, 60, u64::MAX);
        ledger.decoding = 60;
        let (young, old) = (ledger.arrive(7), ledger.arrive(3));
        assert!(!ledger.admits_image(50, old) && !ledger.admits_image(10, young));
        ledger.decoding = 10;
        assert!(ledger.admits_image(50, old));
        ledger.waiting.remove(&old);
        assert!(ledger.admits_image(10, young));
    }

    #[test]
    fn bytes_are_freed_and_the_peak_is_remembered() {
        let (budget, go_on, own) = (Budget::new(100, 50, u64::MAX), AtomicBool::new(false), Arc::default());
        let batch = budget.try_queue(40, &own).unwrap();
        assert!(budget.try_queue(20, &own).is_none());
        let image = budget.admit_image(50, 0, &go_on).unwrap();
        assert_eq!(budget.in_flight(), InFlight { bytes: 90, peak: 90, image_peak: 50 });
        drop((batch, image));
        assert_eq!(budget.in_flight(), InFlight { bytes: 0, peak: 90, image_peak: 50 });
        // The first batch of an epoch is always admitted.
        drop(budget.try_queue(70, &own).unwrap());
    }

    #[test]
    fn a_waiting_image_is_woken_by_free_bytes_and_by_cancelling() {
        let budget = Budget::new(100, 0, u64::MAX);
        for cancel in [false, true] {
            let cancelled = AtomicBool::new(false);
            let image = budget.admit_image(80, 0, &cancelled).unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| budget.admit_image(80, 1, &cancelled).is_some());
                std::thread::sleep(Duration::from_millis(5));
                match cancel {
                    true => {
                        cancelled.store(true, SeqCst);
                        budget.wake();
                    }
                    false => drop(image),
                }
                assert_eq!(waiter.join().unwrap(), !cancel);
            });
        }
    }
}
