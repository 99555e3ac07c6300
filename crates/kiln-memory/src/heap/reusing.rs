//! An allocator that keeps the memory of freed tensors for the next ones, and never more than was in use at most.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::extents::{Extents, Free};
use super::pages::{Addresses, table, trim_system};

/// Requests of fewer bytes go to the system's allocator, whose blocks are not large enough to keep much memory.
const LARGE: usize = 64 << 10;
/// An address that is above all addresses of a program.
const NOWHERE: usize = 1 << (usize::BITS - 1);
/// The most places where free pages may lie.
const PLACES: usize = 1 << 16;

/// A global allocator that holds no more memory of large blocks than the program had in use at most.
///
/// An allocator that gives every freed tensor back to the system makes the next one slow: the system clears each page of it. One that keeps
/// freed memory holds more and more of it in pieces that no tensor fits into. This allocator keeps the pages of freed blocks of 64 KiB and more, as many as make, with those in use, the most that was in use at once since the start.
/// A block is placed where the fewest pages must be added; beyond that bound, the pages that were freed first go back to the system. So the resident
/// memory of a process follows the peak of its heap. Smaller blocks are those of the system's allocator, as are all blocks elsewhere than on
/// Linux with 64 bits, and where the address space of a process is limited. A program with threads that forks must execute another program, as
/// `std::process::Command` does: a lock may be held in the child.
///
/// ```
/// use kiln_memory::{CountingAllocator, ReusingAllocator};
///
/// #[global_allocator]
/// static HEAP: CountingAllocator<ReusingAllocator> = CountingAllocator::over(ReusingAllocator::new());
///
/// drop(vec![1_u8; 1 << 20]);
/// let other = vec![0_u8; 1 << 20];
/// assert!(other.iter().all(|byte| *byte == 0) && HEAP.peak_bytes() < 3 << 20);
/// ```
#[derive(Debug)]
pub struct ReusingAllocator {
    blocks: Mutex<Option<Blocks>>,
    /// The addresses of large blocks. No address is among them before there is one.
    base: AtomicUsize,
    bytes: AtomicUsize,
}

/// Large blocks.
#[derive(Debug)]
struct Blocks {
    addresses: Addresses,
    free: Extents<'static>,
    /// Pages in use, and the most since the start.
    used: usize,
    most: usize,
    /// Whether the system takes pages back. Where it does not, no free page is known to be zeros.
    drops: bool,
}

impl Blocks {
    fn reserve() -> Option<Self> {
        let addresses = Addresses::reserve()?;
        let free = Extents::new(table::<Free>(PLACES)?, addresses.bytes / addresses.page);
        Some(Self { addresses, free, used: 0, most: 0, drops: true })
    }

    fn pages(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.addresses.page)
    }

    fn first_page(&self, pointer: *mut u8) -> usize {
        (pointer as usize - self.addresses.base) / self.addresses.page
    }

    /// Counts pages that were taken.
    fn count(&mut self, pages: usize) {
        self.used += pages;
        self.most = self.most.max(self.used);
        self.drop_surplus();
    }

    /// Drops free pages beyond the bound, those that were freed first before the others.
    fn drop_surplus(&mut self) {
        while self.drops && self.used + self.free.held() > self.most {
            let over = self.used + self.free.held() - self.most;
            let Some((first, dropped)) = self.free.drop_oldest(over) else { break };
            self.drops = self.addresses.drop_contents(first, dropped);
        }
    }

    /// A block, and whether it may hold something other than zeros.
    fn take(&mut self, bytes: usize) -> Option<(*mut u8, bool)> {
        let pages = self.pages(bytes);
        let taken = self.free.take(pages)?;
        self.count(pages);
        Some(((self.addresses.base + taken.start * self.addresses.page) as *mut u8, taken.held > 0 || !self.drops))
    }

    fn give(&mut self, first: usize, pages: usize) {
        self.used -= pages;
        if !self.free.give(first, pages) {
            // There is no place to note it: the addresses are lost, the memory is not.
            let _ = self.addresses.drop_contents(first, pages);
        }
    }

    /// Changes the size of a block where it is, if that is possible.
    fn resize(&mut self, pointer: *mut u8, bytes: usize, new_bytes: usize) -> bool {
        let (first, pages, new) = (self.first_page(pointer), self.pages(bytes), self.pages(new_bytes));
        if new > pages {
            if !self.free.take_at(first + pages, new - pages) {
                return false;
            }
            self.count(new - pages);
        } else if new < pages {
            self.give(first + new, pages - new);
        }
        true
    }
}

impl Default for ReusingAllocator {
    fn default() -> Self {
        Self::new()
    }
}

impl ReusingAllocator {
    /// An allocator without blocks.
    pub const fn new() -> Self {
        Self { blocks: Mutex::new(None), base: AtomicUsize::new(NOWHERE), bytes: AtomicUsize::new(0) }
    }

    /// Gives the pages of freed blocks back to the system, also those of small ones. From then on, the most that was in use is what is in use now: for the end of a phase
    /// that took more than what follows.
    pub fn release(&self) {
        if let Some(blocks) = self.lock().as_mut() {
            blocks.most = blocks.used;
            blocks.drop_surplus();
        }
        trim_system();
    }

    /// The lock. Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, Option<Blocks>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an address is that of a large block.
    fn has(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(self.base.load(Relaxed)) < self.bytes.load(Relaxed)
    }

    /// A large block, and whether it may hold something other than zeros. `None` for a small one, and where no addresses can be reserved.
    fn take(&self, layout: Layout) -> Option<(*mut u8, bool)> {
        if layout.size() < LARGE {
            return None;
        }
        let mut blocks = self.lock();
        if blocks.is_none() {
            if self.base.load(Relaxed) == 0 {
                return None; // it was refused before
            }
            *blocks = Blocks::reserve();
            let addresses = blocks.as_ref().map(|blocks| blocks.addresses);
            self.base.store(addresses.map_or(0, |addresses| addresses.base), Relaxed);
            self.bytes.store(addresses.map_or(0, |addresses| addresses.bytes), Relaxed);
        }
        let blocks = blocks.as_mut()?;
        if layout.align() > blocks.addresses.page { None } else { blocks.take(layout.size()) }
    }
}

#[allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]
// SAFETY: a large block is made of pages of a private mapping that nothing else uses: `Extents` hands each page out once until it is given
// back. It begins at a page, which is enough for its alignment. All other blocks are the system's, and go back there, because their addresses
// are not in the mapping. Nothing here allocates: a table in a mapping has the places of free pages.
unsafe impl GlobalAlloc for ReusingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.take(layout) {
            Some((pointer, _)) => pointer,
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((pointer, written)) = self.take(layout) else { return unsafe { System.alloc_zeroed(layout) } };
        if written {
            // SAFETY: the block has as many bytes.
            unsafe { pointer.write_bytes(0, layout.size()) };
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !self.has(pointer) {
            return unsafe { System.dealloc(pointer, layout) };
        }
        if let Some(blocks) = self.lock().as_mut() {
            let (first, pages) = (blocks.first_page(pointer), blocks.pages(layout.size()));
            blocks.give(first, pages);
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let is_large = self.has(pointer);
        // The system's allocator can grow a block where it is.
        if !is_large && (new_size < LARGE || self.base.load(Relaxed) == 0) {
            return unsafe { System.realloc(pointer, layout, new_size) };
        }
        let resized = |blocks: &mut Blocks| blocks.resize(pointer, layout.size(), new_size);
        if is_large && new_size >= LARGE && self.lock().as_mut().is_some_and(resized) {
            return pointer;
        }
        // SAFETY: the caller's `new_size` does not overflow with this alignment. The old block is valid until it is freed, and the new one is
        // another one.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(pointer, layout.size().min(new_size));
                self.dealloc(pointer, layout);
            }
            moved
        }
    }
}
