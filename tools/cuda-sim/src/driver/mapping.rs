//! Pages of the host that stand for memory of a GPU or for pinned memory, taken when they are first written.

use std::io;

/// A private anonymous mapping, unmapped when dropped. Its pages read as zero until they are written.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping owns its pages, and what reads and writes them (copies, kernels) works on raw bytes as a GPU
// does: programs order those themselves by streams and events.
unsafe impl Send for Mapping {}
// SAFETY: as above; no reference to the bytes is ever made, only raw pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes (more than 0) without reserving memory for them.
    ///
    /// # Errors
    /// The error of the operating system, such as a full address space.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the system's choice touches no memory that exists.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), bytes })
    }

    /// First byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Writes `byte` everywhere, which takes all of its pages.
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: the range is this mapping, which is writable and just made, so nobody else uses it.
        unsafe { self.start.write_bytes(byte, self.bytes) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of a mapping that this value alone owns; the last user is gone.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_mapping_costs_only_what_is_touched() {
        let mapping = Mapping::new(1 << 40).expect("1 TiB of address space");
        // SAFETY: both bytes lie inside the mapping.
        unsafe {
            mapping.start().add((1 << 40) - 1).write(7);
            assert_eq!(mapping.start().add((1 << 40) - 1).read(), 7);
            assert_eq!(mapping.start().add(1 << 39).read(), 0);
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        assert!(Mapping::new(usize::MAX / 2).is_err());
    }
}
