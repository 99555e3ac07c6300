//! A global allocator that counts the bytes of the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::open_spans::OpenSpans;

/// A global allocator that forwards to `A` and counts the requested bytes.
///
/// It counts the bytes that the program requests. Bytes that the allocator adds (headers, rounding, fragmentation) and memory
/// that is mapped directly are not counted. A reallocation counts as its difference in size. An allocation costs two relaxed
/// atomic operations more. Counts are exact once the threads that allocate are joined; before that they are off by the calls in
/// progress.
#[derive(Debug)]
pub struct CountingAllocator<A = System> {
    inner: A,
    counts: HeapCounts,
}

/// What a [`CountingAllocator`] has counted.
#[derive(Debug)]
pub struct HeapCounts {
    live: AtomicUsize,
    peak: AtomicUsize,
    spans: OpenSpans,
}

impl CountingAllocator {
    /// An allocator that counts in front of the system's allocator.
    pub const fn new() -> Self {
        Self::over(System)
    }
}

impl Default for CountingAllocator {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> CountingAllocator<A> {
    /// An allocator that counts in front of `inner`.
    pub const fn over(inner: A) -> Self {
        let counts = HeapCounts { live: AtomicUsize::new(0), peak: AtomicUsize::new(0), spans: OpenSpans::new() };
        Self { inner, counts }
    }

    /// The allocator behind the counts.
    pub const fn inner(&self) -> &A {
        &self.inner
    }
}

impl<A> Deref for CountingAllocator<A> {
    type Target = HeapCounts;

    fn deref(&self) -> &HeapCounts {
        &self.counts
    }
}

impl HeapCounts {
    /// Bytes allocated and not yet freed.
    pub fn live_bytes(&self) -> usize {
        self.live.load(Relaxed)
    }

    /// The highest value of [`live_bytes`](Self::live_bytes) since the start or the last [`reset_peak`](Self::reset_peak).
    pub fn peak_bytes(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Starts a new peak at the bytes that are live now. Open [spans](crate::Meter::span) keep their peaks.
    pub fn reset_peak(&self) {
        self.spans.rebase(|| self.swap_peak());
    }

    /// Opens a span. Until it is closed, its peak is the higher of its value and [`peak_bytes`](Self::peak_bytes).
    pub(super) fn open_span(&self) -> Arc<AtomicU64> {
        self.spans.open(|| self.live_bytes() as u64, || self.swap_peak())
    }

    pub(super) fn close_span(&self, span: &Arc<AtomicU64>) {
        self.spans.close(span);
    }

    fn swap_peak(&self) -> u64 {
        self.peak.swap(self.live_bytes(), Relaxed) as u64
    }

    fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(live, Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Relaxed);
    }
}

#[allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait; every call is forwarded unchanged")]
// SAFETY: every method passes its arguments to `inner` untouched and returns what it returned, so
// that the contract of `GlobalAlloc` holds here when it holds there. Counting does not allocate.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let pointer = unsafe { self.inner.alloc(layout) };
        if !pointer.is_null() {
            self.counts.add(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let pointer = unsafe { self.inner.alloc_zeroed(layout) };
        if !pointer.is_null() {
            self.counts.add(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { self.inner.dealloc(pointer, layout) };
        self.counts.subtract(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let moved = unsafe { self.inner.realloc(pointer, layout, new_size) };
        if !moved.is_null() {
            self.counts.add(new_size.saturating_sub(layout.size()));
            self.counts.subtract(layout.size().saturating_sub(new_size));
        }
        moved
    }
}
