//! Addresses and pages of the operating system. Elsewhere than on Linux with 64 bits there are none, and the system's allocator has all blocks.
#![allow(unsafe_code, reason = "system calls: no safe interface maps memory for an allocator, which may not allocate")]

/// Addresses of a process, whose pages read as zeros and take memory when they are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) base: usize,
    pub(super) bytes: usize,
    /// Bytes of a page.
    pub(super) page: usize,
}

/// Bytes to reserve, from the most that are useful to the least: some machines have fewer bits in an address.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
const SIZES: [usize; 2] = [1 << 42, 1 << 37];

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn map(bytes: usize) -> Option<*mut libc::c_void> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses addresses that nothing else uses.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    (base != libc::MAP_FAILED).then_some(base)
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
impl Addresses {
    /// Reserves addresses. `None` where the system refuses, as under a limit of address space.
    pub(super) fn reserve() -> Option<Self> {
        // SAFETY: the call only reads a constant of the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        let (base, bytes) = SIZES.iter().find_map(|bytes| Some((map(*bytes)?, *bytes)))?;
        // Huge pages would hold memory that is not in use. Systems without them refuse, which changes nothing.
        // SAFETY: the mapping is that long.
        unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
        Some(Self { base: base as usize, bytes, page })
    }

    /// Gives the memory of pages back. They read as zeros afterwards, unless the system refuses, as it does for locked pages.
    pub(super) fn drop_contents(&self, first: usize, pages: usize) -> bool {
        let start = (self.base + first * self.page) as *mut libc::c_void;
        // SAFETY: the pages are in this mapping, and they are free: nothing refers to their contents.
        unsafe { libc::madvise(start, pages * self.page, libc::MADV_DONTNEED) == 0 }
    }
}

/// Gives the free memory of the system's allocator back, where that is glibc's.
pub(super) fn trim_system() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call only gives back pages without blocks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Takes pages of a file out of memory, which must be mapped there, not be writable, and be as they are in the file.
pub(super) fn drop_file_pages(start: usize, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the pages are those of the file, so that they are read from it again when they are used.
    unsafe {
        libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_DONTNEED);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// A table of `count` default values, which takes memory where it is written. A type of numbers whose zero bytes are its default.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub(super) fn table<T: Copy + Default>(count: usize) -> Option<&'static mut [T]> {
    let base = map(count * size_of::<T>())?.cast::<T>();
    // SAFETY: the mapping is `count` values long, is never unmapped, and is handed out once. Its pages are zeros.
    Some(unsafe { &mut *std::ptr::slice_from_raw_parts_mut(base, count) })
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
impl Addresses {
    pub(super) fn reserve() -> Option<Self> {
        None
    }

    pub(super) fn drop_contents(&self, _: usize, _: usize) -> bool {
        false
    }
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub(super) fn table<T: Copy + Default>(_: usize) -> Option<&'static mut [T]> {
    None
}
