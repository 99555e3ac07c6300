use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::tensor::Device;

use crate::CountingAllocator;

/// Live, reserved and highest bytes of the memory that a device's tensors are in.
///
/// On burn's CPU device that is the heap of the process, seen by a [`CountingAllocator`]; on a CubeCL device the device's pool.
/// The heap knows its peak exactly; a pool does not say it, so that the highest reading of [`live_bytes`](Self::live_bytes) stands
/// for it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use kiln_memory::{CountingAllocator, Meter};
///
/// #[global_allocator]
/// static HEAP: CountingAllocator = CountingAllocator::new();
///
/// let device = Device::flex();
/// let meter = Meter::of(&device, &HEAP);
/// let x = Tensor::<2>::ones([512, 512], &device);
/// assert!(meter.live_bytes() >= 512 * 512 * 4);
/// drop(x);
/// assert!(meter.live_bytes() < 512 * 512 * 4 && meter.peak_bytes() >= 512 * 512 * 4);
/// ```
pub struct Meter {
    source: Source,
    /// Bytes that were live before what is measured.
    baseline: AtomicU64,
    highest: AtomicU64,
}

#[derive(Clone)]
enum Source {
    Heap(&'static CountingAllocator),
    Pool(Device),
}

/// Memory of a whole card, whoever uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardMemory {
    /// Bytes of the card.
    pub total: u64,
    /// Bytes that nobody has.
    pub free: u64,
}

impl Meter {
    /// Measures `device` from what is live now: its pool when it has one, the heap otherwise.
    pub fn of(device: &Device, heap: &'static CountingAllocator) -> Self {
        let source = match device.memory_pool_usage() {
            Some(_) => Source::Pool(device.clone()),
            None => Source::Heap(heap),
        };
        let meter = Self { source, baseline: 0.into(), highest: 0.into() };
        meter.baseline.store(meter.in_use(), Relaxed);
        meter.reset_peak();
        meter
    }

    /// Leaves `bytes` more out of all figures: what was allocated meanwhile and is not what is measured, such as reports.
    pub fn exclude(&self, bytes: u64) {
        self.baseline.fetch_add(bytes, Relaxed);
    }

    /// Bytes of buffers that are in use, beyond the baseline. On a pool this waits for the device.
    pub fn live_bytes(&self) -> u64 {
        let live = self.in_use();
        self.highest.fetch_max(live, Relaxed);
        live.saturating_sub(self.baseline.load(Relaxed))
    }

    /// Bytes taken from the operating system or the driver, pages held for reuse included. None where only what is asked
    /// for is known.
    pub fn reserved_bytes(&self) -> Option<u64> {
        match &self.source {
            Source::Heap(_) => None,
            Source::Pool(device) => device.memory_pool_usage().map(|usage| usage.bytes_reserved),
        }
    }

    /// The most bytes beyond the baseline since the last [`reset_peak`](Self::reset_peak).
    pub fn peak_bytes(&self) -> u64 {
        let highest = match &self.source {
            Source::Heap(heap) => heap.peak_bytes() as u64,
            Source::Pool(_) => self.highest.load(Relaxed),
        };
        highest.saturating_sub(self.baseline.load(Relaxed))
    }

    /// Starts a new peak at what is live now.
    pub fn reset_peak(&self) {
        if let Source::Heap(heap) = &self.source {
            heap.reset_peak();
        }
        self.highest.store(self.in_use(), Relaxed);
    }

    /// Whether the peak is exact: between two readings nothing is missed.
    pub fn is_exact(&self) -> bool {
        matches!(self.source, Source::Heap(_))
    }

    /// The allocator, when reading it costs next to nothing and may be done from any thread.
    pub(crate) fn heap(&self) -> Option<(&'static CountingAllocator, u64)> {
        match &self.source {
            Source::Heap(heap) => Some((heap, self.baseline.load(Relaxed))),
            Source::Pool(_) => None,
        }
    }

    fn in_use(&self) -> u64 {
        match &self.source {
            Source::Heap(heap) => heap.live_bytes() as u64,
            Source::Pool(device) => {
                device.memory_pool_usage().map_or(0, |usage| usage.bytes_in_use + usage.bytes_padding)
            }
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = if self.is_exact() { "heap" } else { "pool" };
        f.debug_struct("Meter").field("source", &source).field("baseline", &self.baseline).finish()
    }
}

impl CardMemory {
    /// What NVIDIA's management library says of card number `index`. None without the feature `nvml`, without a driver, and
    /// without such a card; the library is loaded when this is called.
    pub fn of_nvidia(index: u32) -> Option<Self> {
        #[cfg(feature = "nvml")]
        {
            let nvml = nvml_wrapper::Nvml::init().ok()?;
            let memory = nvml.device_by_index(index).ok()?.memory_info().ok()?;
            Some(Self { total: memory.total, free: memory.free })
        }
        #[cfg(not(feature = "nvml"))]
        {
            let _ = index;
            None
        }
    }
}
