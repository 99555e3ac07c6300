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

/// Whether a page is to be had.
fn granted() -> bool {
    if !ARMED.load(SeqCst) {
        return true;
    }
    let number = SEEN.fetch_add(1, SeqCst) + 1;
    let refused = REFUSE.iter().any(|refuse| refuse.load(SeqCst) == number);
    REFUSED.fetch_add(usize::from(refused), SeqCst);
    !refused
}

// SAFETY: every request is handed to the system's allocator as it came, and its answer is handed back; a null pointer
// instead is what an allocator without memory returns.
unsafe impl GlobalAlloc for Pages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() == ALIGNMENT && !granted() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract is the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What happened to pages while they were watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Pages that were asked for.
    pub(crate) seen: usize,
    /// Those of them that were refused.
    pub(crate) refused: usize,
}

/// The allocator belongs to all tests of this process: one at a time.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses the pages of these numbers, counted from 1, while `work` runs.
pub(crate) fn refusing<T>(numbers: &[usize], work: impl FnOnce() -> T) -> (T, Count) {
    /// Also when `work` panics: a test that failed must not make others fail.
    struct Disarm;
    impl Drop for Disarm {
        fn drop(&mut self) {
            ARMED.store(false, SeqCst);
        }
    }
    assert!(numbers.len() <= MOST);
    for (slot, refuse) in REFUSE.iter().enumerate() {
        refuse.store(numbers.get(slot).copied().unwrap_or(0), SeqCst);
    }
    SEEN.store(0, SeqCst);
    REFUSED.store(0, SeqCst);
    ARMED.store(true, SeqCst);
    let disarm = Disarm;
    let value = work();
    drop(disarm);
    (value, Count { seen: SEEN.load(SeqCst), refused: REFUSED.load(SeqCst) })
}
