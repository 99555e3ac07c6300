//! The buffers of a process, and those that are refused.

use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The bytes of all buffers that are allowed at once, unless some are taken away.
const TOTAL: u64 = 1 << 40;

#[derive(Default)]
struct State {
    /// Bytes of each buffer.
    live: HashMap<u64, u64>,
    live_bytes: u64,
    peak_bytes: u64,
    /// Bytes that are taken away.
    taken: u64,
    /// Buffers that were made.
    made: u64,
    /// Buffers that were refused by their number, and for lack of bytes.
    faults: u64,
    refused: u64,
    kernels: Numbered,
    copies: Numbered,
}

/// Buffers of a kind since faults were armed.
#[derive(Default)]
struct Numbered {
    asked: u64,
    /// Numbers of buffers that will be refused.
    armed: BTreeSet<u64>,
}

impl Numbered {
    /// Whether the next one is refused.
    fn fault(&mut self) -> bool {
        self.asked += 1;
        self.armed.remove(&self.asked)
    }
}

pub(crate) struct Buffers(LazyLock<Mutex<State>>);

pub(crate) static BUFFERS: Buffers = Buffers(LazyLock::new(Mutex::default));

impl Buffers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a buffer for a copy may be made.
    pub(crate) fn allows_copy(&self) -> bool {
        let mut state = self.state();
        let fault = state.copies.fault();
        state.faults += u64::from(fault);
        !fault
    }

    /// Whether a buffer may be made.
    pub(crate) fn allows(&self, bytes: u64) -> bool {
        let mut state = self.state();
        let fault = state.kernels.fault();
        let full = !fault && state.live_bytes + state.taken + bytes > TOTAL;
        state.faults += u64::from(fault);
        state.refused += u64::from(full);
        !fault && !full
    }

    pub(crate) fn add(&self, buffer: u64, bytes: u64) {
        let mut state = self.state();
        state.live.insert(buffer, bytes);
        state.made += 1;
        state.live_bytes += bytes;
        state.peak_bytes = state.peak_bytes.max(state.live_bytes);
    }

    pub(crate) fn remove(&self, buffer: u64) {
        let mut state = self.state();
        let bytes = state.live.remove(&buffer).unwrap_or(0);
        state.live_bytes -= bytes;
    }

    pub(crate) fn count(&self, name: &[u8]) -> u64 {
        let state = self.state();
        match name {
            b"allocations" => state.made,
            b"faults" => state.faults,
            b"refused" => state.refused,
            b"live_bytes" => state.live_bytes,
            b"peak_bytes" => state.peak_bytes,
            b"free" => TOTAL - state.live_bytes - state.taken,
            _ => u64::MAX,
        }
    }

    /// `None` for a text of another form.
    pub(crate) fn arm(&self, text: &str) -> Option<()> {
        let [mut kernels, mut copies] = [Numbered::default(), Numbered::default()];
        for fault in text.split(',').filter(|fault| !fault.is_empty()) {
            let (kind, numbers) = fault.strip_suffix(":OUT_OF_MEMORY")?.split_once(':')?;
            let (first, times) = numbers.split_once('x')?;
            let (first, times): (u64, u64) = (first.parse().ok()?, times.parse().ok()?);
            let of_kind = match kind {
                "alloc" => &mut kernels,
                "copy" => &mut copies,
                _ => return None,
            };
            of_kind.armed.extend(first..first + times);
        }
        let mut state = self.state();
        (state.kernels, state.copies) = (kernels, copies);
        Some(())
    }

    pub(crate) fn disarm(&self) {
        let mut state = self.state();
        (state.kernels, state.copies) = Default::default();
    }

    pub(crate) fn take(&self, bytes: u64) -> bool {
        let mut state = self.state();
        let free = state.live_bytes + state.taken + bytes <= TOTAL;
        state.taken += if free { bytes } else { 0 };
        free
    }

    pub(crate) fn give(&self, bytes: u64) {
        let mut state = self.state();
        state.taken = state.taken.saturating_sub(bytes);
    }

    pub(crate) fn reset_peak(&self) {
        let mut state = self.state();
        state.peak_bytes = state.live_bytes;
    }
}
