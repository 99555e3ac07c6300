//! Live bytes and peaks of the memory that a device's tensors are in.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::tensor::Device;

use super::allocator::HeapCounts;
use super::open_spans::OpenSpans;

/// Live and reserved bytes of the memory in which a device has its tensors, and peaks over [spans](Self::span) of time.
///
/// On burn's CPU device the memory is the heap of the process, which a [`CountingAllocator`](crate::CountingAllocator) counts. On a CubeCL device it is the
/// device's pool. Peaks of the heap are exact. A pool does not report its peak, so the peak of a span is the highest reading within it.
/// Clones measure the same memory from the same baseline.
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
/// let span = meter.span();
/// let x = Tensor::<2>::ones([512, 512], &device);
/// assert!(meter.live_bytes() >= 512 * 512 * 4);
/// drop(x);
/// assert!(meter.live_bytes() < 512 * 512 * 4 && span.peak_bytes() >= 512 * 512 * 4);
/// assert!(meter.span().peak_bytes() < 512 * 512 * 4);
/// ```
#[derive(Clone)]
pub struct Meter {
    shared: Arc<Shared>,
}

/// A span of time over which a [`Meter`] notes the peak. It ends when it is dropped; spans may nest and overlap.
pub struct Span {
    meter: Meter,
    /// The most bytes before the last reset of the allocator's peak; of a pool, the highest reading.
    highest: Arc<AtomicU64>,
}

struct Shared {
    source: Source,
    /// Bytes that were live before the measurement, which are not counted.
    baseline: AtomicU64,
}

enum Source {
    Heap(&'static HeapCounts),
    Pool { device: Device, spans: OpenSpans },
}

impl Meter {
    /// Measures the memory of `device`: its pool if it has one, otherwise the heap. The bytes that are live now are not counted.
    pub fn of(device: &Device, heap: &'static HeapCounts) -> Self {
        Self::of_pool(device).unwrap_or_else(|| Self::of_heap(heap))
    }

    /// Measures the heap. The bytes that are live now are not counted.
    pub fn of_heap(heap: &'static HeapCounts) -> Self {
        Self::new(Source::Heap(heap))
    }

    /// Measures the memory pool of `device`. The bytes that are live now are not counted. `None` for a device without a pool.
    pub fn of_pool(device: &Device) -> Option<Self> {
        device.memory_pool_usage()?;
        Some(Self::new(Source::Pool { device: device.clone(), spans: OpenSpans::new() }))
    }

    fn new(source: Source) -> Self {
        let shared = Shared { source, baseline: 0.into() };
        shared.baseline.store(shared.in_use(), Relaxed);
        Self { shared: Arc::new(shared) }
    }

    /// Excludes `bytes` more from all figures: bytes that were allocated meanwhile and are not part of the measurement, such as reports.
    pub fn exclude(&self, bytes: u64) {
        self.shared.baseline.fetch_add(bytes, Relaxed);
    }

    /// Bytes of buffers that are in use, above the baseline. On a pool this waits for the device.
    pub fn live_bytes(&self) -> u64 {
        self.above_baseline(self.shared.read())
    }

    /// Bytes taken from the operating system or from the GPU's driver, including pages held for reuse. `None` for the heap, where only
    /// the requested bytes are known.
    pub fn reserved_bytes(&self) -> Option<u64> {
        match &self.shared.source {
            Source::Heap(_) => None,
            Source::Pool { device, .. } => device.memory_pool_usage().map(|usage| usage.bytes_reserved),
        }
    }

    /// Begins a span, whose peak starts at the bytes that are live now.
    #[must_use = "a span ends when it is dropped"]
    pub fn span(&self) -> Span {
        let highest = match &self.shared.source {
            Source::Heap(heap) => heap.open_span(),
            Source::Pool { spans, .. } => {
                let live = self.shared.read();
                spans.open(|| live, || live)
            }
        };
        Span { meter: self.clone(), highest }
    }

    /// Whether peaks are exact, so that nothing between two readings is missed.
    pub fn is_exact(&self) -> bool {
        matches!(self.shared.source, Source::Heap(_))
    }

    /// Live bytes for readings at a high rate from another thread. `None` if a reading waits for the device.
    pub(super) fn sampled_bytes(&self) -> Option<u64> {
        self.is_exact().then(|| self.live_bytes())
    }

    fn above_baseline(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.shared.baseline.load(Relaxed))
    }
}

impl Span {
    /// The most bytes above the meter's baseline since the span began. On a pool this reads the live bytes, which waits for the
    /// device.
    pub fn peak_bytes(&self) -> u64 {
        let latest = match &self.meter.shared.source {
            Source::Heap(heap) => heap.peak_bytes() as u64,
            Source::Pool { .. } => self.meter.shared.read(),
        };
        self.meter.above_baseline(self.highest.load(Relaxed).max(latest))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        match &self.meter.shared.source {
            Source::Heap(heap) => heap.close_span(&self.highest),
            Source::Pool { spans, .. } => spans.close(&self.highest),
        }
    }
}

impl Shared {
    /// Reads the bytes in use, and notes them in the spans of a pool.
    fn read(&self) -> u64 {
        let bytes = self.in_use();
        if let Source::Pool { spans, .. } = &self.source {
            spans.note(bytes);
        }
        bytes
    }

    fn in_use(&self) -> u64 {
        match &self.source {
            Source::Heap(heap) => heap.live_bytes() as u64,
            Source::Pool { device, .. } => {
                device.memory_pool_usage().map_or(0, |usage| usage.bytes_in_use + usage.bytes_padding)
            }
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = if self.is_exact() { "heap" } else { "pool" };
        f.debug_struct("Meter").field("source", &source).field("baseline", &self.shared.baseline).finish()
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("meter", &self.meter).field("highest", &self.highest).finish()
    }
}
