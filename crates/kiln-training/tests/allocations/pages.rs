//! The memory of CubeCL's CPU device, refused on demand.
//!
//! The device takes every page from the global allocator, zeroed and aligned to 64 bytes; nothing else of this process asks
//! for memory like that. When such a request gets no pointer, the device does what a card does that is full: the buffer
//! stays unwritten, the work that needs it is skipped, and what would have read that is skipped in turn.
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait; every call is forwarded unchanged or refused")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Pages;

#[global_allocator]
static PAGES: Pages = Pages;

/// As cubecl-server's `BytesStorage`.
const ALIGNMENT: usize = 64;
/// More than any test refuses.
const MOST: usize = 2;

static ARMED: AtomicBool = AtomicBool::new(false);
static SEEN: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
/// Numbers of the requests to refuse, counted from 1; 0: none.
static REFUSE: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CAP: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether a page of so many bytes is to be had.
fn granted(size: usize) -> bool {
    if !ARMED.load(SeqCst) {
        return true;
    }
    let number = SEEN.fetch_add(1, SeqCst) + 1;
    let refused = REFUSE.iter().any(|refuse| refuse.load(SeqCst) == number)
        || HELD.load(SeqCst).saturating_add(size) > CAP.load(SeqCst);
    REFUSED.fetch_add(usize::from(refused), SeqCst);
    !refused
}

fn hold(layout: Layout) {
    if layout.align() == ALIGNMENT {
        let held = HELD.fetch_add(layout.size(), SeqCst) + layout.size();
        PEAK.fetch_max(held, SeqCst);
    }
}

fn release(layout: Layout) {
    if layout.align() == ALIGNMENT {
        HELD.fetch_sub(layout.size(), SeqCst);
    }
}

// SAFETY: every request is handed to the system's allocator as it came, and its answer is handed back; a null pointer
// instead is what an allocator without memory returns.
unsafe impl GlobalAlloc for Pages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        hold(layout);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() == ALIGNMENT && !granted(layout.size()) {
            return std::ptr::null_mut();
        }
        hold(layout);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        release(layout);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        release(layout);
        if layout.align() == ALIGNMENT {
            HELD.fetch_add(size, SeqCst);
        }
        // SAFETY: the caller's contract is the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Which pages are refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refuse<'a> {
    /// Those of these numbers, counted from 1.
    Pages(&'a [usize]),
    /// Every one by which there would be more than so many bytes beyond those at the beginning.
    Beyond(usize),
}

/// What happened to pages while they were watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Pages that were asked for.
    pub(crate) seen: usize,
    /// Those of them that were refused.
    pub(crate) refused: usize,
    /// Bytes that were held at the beginning.
    pub(crate) before: usize,
    /// The most bytes that were held at once.
    pub(crate) peak: usize,
}

/// The allocator belongs to all tests of this process: one at a time.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses pages while `work` runs.
pub(crate) fn refusing<T>(refuse: Refuse<'_>, work: impl FnOnce() -> T) -> (T, Count) {
    /// Also when `work` panics: a test that failed must not make others fail.
    struct Disarm;
    impl Drop for Disarm {
        fn drop(&mut self) {
            ARMED.store(false, SeqCst);
        }
    }
    let before = HELD.load(SeqCst);
    let (numbers, cap) = match refuse {
        Refuse::Pages(numbers) => (numbers, usize::MAX),
        Refuse::Beyond(bytes) => (&[][..], before + bytes),
    };
    assert!(numbers.len() <= MOST);
    for (slot, refuse) in REFUSE.iter().enumerate() {
        refuse.store(numbers.get(slot).copied().unwrap_or(0), SeqCst);
    }
    CAP.store(cap, SeqCst);
    SEEN.store(0, SeqCst);
    REFUSED.store(0, SeqCst);
    PEAK.store(before, SeqCst);
    ARMED.store(true, SeqCst);
    let disarm = Disarm;
    let value = work();
    drop(disarm);
    let count = Count { seen: SEEN.load(SeqCst), refused: REFUSED.load(SeqCst), before, peak: PEAK.load(SeqCst) };
    (value, count)
}
