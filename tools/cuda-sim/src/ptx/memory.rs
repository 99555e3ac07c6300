//! Device memory as the interpreter sees it, and a plain owner of such memory for tests.

/// One live allocation of device memory.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    /// First device address.
    pub start: u64,
    /// Size in bytes.
    pub len: u64,
    /// Host memory that holds the bytes.
    pub host: *mut u8,
}

/// Finds the allocation behind a device address.
///
/// The interpreter asks once per memory instruction and block and then remembers the answer, so an allocation must not
/// be freed while a launch runs.
pub trait Memory: Sync {
    /// The live allocation that holds the byte at `address`; nothing where the address belongs to none.
    fn region(&self, address: u64) -> Option<Region>;
}

/// Allocations in host memory whose device address is their host address.
#[derive(Debug, Default)]
pub struct Buffers {
    buffers: Vec<(Box<[u64]>, u64)>,
}

impl Buffers {
    /// A new allocation of `bytes` zero bytes; gives its device address.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        // 256 bytes of alignment, as the driver promises
        let words = vec![0_u64; (bytes as usize).div_ceil(8) + 32].into_boxed_slice();
        let address = (words.as_ptr() as u64).next_multiple_of(256);
        self.buffers.push((words, bytes));
        address
    }

    /// A new allocation that holds `bytes`; gives its device address.
    pub fn upload(&mut self, bytes: &[u8]) -> u64 {
        let address = self.allocate(bytes.len() as u64);
        // SAFETY: the allocation above is at least `bytes.len()` long and nobody else knows it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        address
    }

    /// Copies `bytes` bytes from device address `address`.
    ///
    /// # Panics
    /// When the range lies in no allocation.
    #[must_use]
    pub fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let region = self.region(address).filter(|r| address + bytes as u64 <= r.start + r.len);
        assert!(region.is_some(), "{bytes} bytes at {address:#x} lie in no allocation");
        // SAFETY: the range was found inside one allocation; no launch runs while the caller holds `self` alone.
        unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
    }
}

impl Memory for Buffers {
    fn region(&self, address: u64) -> Option<Region> {
        self.buffers.iter().find_map(|(words, len)| {
            let start = (words.as_ptr() as u64).next_multiple_of(256);
            (start..start + len).contains(&address).then_some(Region { start, len: *len, host: start as *mut u8 })
        })
    }
}
