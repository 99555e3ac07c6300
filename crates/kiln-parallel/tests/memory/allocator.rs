//! An allocator that counts bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

#[allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait; every call is forwarded unchanged")]
// SAFETY: every method passes its arguments to the system's allocator untouched and returns what it returned. Counting does not allocate.
// `alloc_zeroed` and `realloc` keep their default bodies, which call these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) };
    }
}

/// Bytes allocated and not freed.
pub(crate) fn live() -> usize {
    LIVE.load(Relaxed)
}

/// The result of `work`, and the most bytes that were live during it beyond those before it.
pub(crate) fn peak<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = live();
    PEAK.store(before, Relaxed);
    let result = work();
    (result, PEAK.load(Relaxed) - before)
}
