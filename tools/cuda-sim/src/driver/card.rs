//! Properties of GPUs: attributes by compute capability, as the first GPU of each generation has them.

/// Limits of one compute capability that differ between generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) capability: u32,
    pub(crate) multiprocessors: i32,
    pub(crate) threads_per_multiprocessor: i32,
    pub(crate) blocks_per_multiprocessor: i32,
    /// Bytes of shared memory of one multiprocessor.
    pub(crate) shared_per_multiprocessor: i32,
    /// Bytes of shared memory that one block may have after it asked for it.
    pub(crate) shared_per_block: i32,
    /// Bytes of the level-2 cache.
    pub(crate) cache: i32,
    /// Clock of the multiprocessors in kHz.
    pub(crate) clock: i32,
    /// Clock of the memory in kHz.
    pub(crate) memory_clock: i32,
    /// Width of the memory bus in bits.
    pub(crate) bus: i32,
}

/// Shared memory that a block gets without asking, in bytes.
pub(crate) const SHARED_BY_DEFAULT: u32 = 49_152;
/// Shared memory that the system keeps of each block, in bytes, from compute capability 8.0 on.
const SHARED_RESERVED: i32 = 1024;
/// Registers of one multiprocessor, and the most that one block may use.
pub(crate) const REGISTERS: u32 = 65_536;
/// Threads of the largest block.
pub(crate) const BLOCK_THREADS: u32 = 1024;
/// Threads of the largest block, by dimension.
pub(crate) const BLOCK: [u32; 3] = [1024, 1024, 64];
/// Blocks of the largest grid, by dimension.
pub(crate) const GRID: [u32; 3] = [2_147_483_647, 65_535, 65_535];

#[rustfmt::skip] // one GPU a line
const CARDS: [[i32; 10]; 9] = [
    // capability, multiprocessors, threads, blocks, shared, shared of a block, cache, clock, memory clock, bus
    [70, 80, 2048, 32, 98_304, 98_304, 6 << 20, 1_530_000, 877_000, 4096], // V100
    [75, 40, 1024, 16, 65_536, 65_536, 4 << 20, 1_590_000, 5_001_000, 256], // T4
    [80, 108, 2048, 32, 167_936, 166_912, 40 << 20, 1_410_000, 1_215_000, 5120], // A100
    [86, 82, 1536, 16, 102_400, 101_376, 6 << 20, 1_695_000, 9_751_000, 384], // RTX 3090
    [87, 16, 1536, 16, 167_936, 166_912, 4 << 20, 1_300_000, 3_199_000, 256], // Orin
    [89, 128, 1536, 24, 102_400, 101_376, 72 << 20, 2_520_000, 10_501_000, 384], // RTX 4090
    [90, 132, 2048, 32, 233_472, 232_448, 50 << 20, 1_755_000, 2_619_000, 5120], // H100
    [100, 148, 2048, 32, 233_472, 232_448, 126 << 20, 1_965_000, 3_996_000, 8192], // B200
    [120, 170, 1536, 24, 102_400, 101_376, 96 << 20, 2_407_000, 14_001_000, 512], // RTX 5090
];

impl Card {
    /// The GPU of a compute capability; one that is not in the table has the limits of the nearest before it.
    pub(crate) fn of(capability: u32) -> Self {
        let row = CARDS.iter().rev().find(|row| row[0] as u32 <= capability).unwrap_or(&CARDS[0]);
        let [_, multiprocessors, threads, blocks, shared, shared_per_block, cache, clock, memory_clock, bus] = *row;
        Self {
            capability,
            multiprocessors,
            threads_per_multiprocessor: threads,
            blocks_per_multiprocessor: blocks,
            shared_per_multiprocessor: shared,
            shared_per_block,
            cache,
            clock,
            memory_clock,
            bus,
        }
    }

    /// The value of a `CUdevice_attribute`; nothing for one this table does not know, which a program may take as 0.
    pub(crate) fn attribute(&self, number: i32, ordinal: usize) -> Option<i32> {
        let reserved = if self.capability >= 80 { SHARED_RESERVED } else { 0 };
        Some(match number {
            1 => BLOCK_THREADS as i32,
            2..=4 => BLOCK[number as usize - 2] as i32,
            5..=7 => GRID[number as usize - 5] as i32,
            8 => SHARED_BY_DEFAULT as i32,
            9 => 65_536,                 // constant memory
            10 => 32,                    // threads of a warp
            11 => i32::MAX,              // largest pitch
            12 | 82 => REGISTERS as i32, // of a block, of a multiprocessor
            13 => self.clock,
            14 | 30 => 512, // alignment of textures and surfaces
            15 => 1,        // copies overlap kernels
            16 => self.multiprocessors,
            17 | 18 | 20 | 35 => 0, // no watchdog, not integrated, default compute mode, no TCC driver
            19 => 1,                // host memory can be mapped
            31 => 1,                // kernels run beside each other
            32 => i32::from(matches!(self.capability, 70 | 80 | 90 | 100)), // memory with error correction
            33 => ordinal as i32 + 1, // PCI bus
            34 | 50 => 0,           // PCI device and domain
            36 => self.memory_clock,
            37 => self.bus,
            38 => self.cache,
            39 => self.threads_per_multiprocessor,
            40 => 2, // copy engines
            41 => 1, // one address space
            75 => (self.capability / 10) as i32,
            76 => (self.capability % 10) as i32,
            78..=80 => 1, // stream priorities, level-1 caches
            81 => self.shared_per_multiprocessor,
            83 => 1,      // managed memory
            84 => 0,      // no board with several GPUs
            89 | 91 => 1, // managed memory beside the host; host pointers of registered memory
            90 => 1,      // preemption
            95 => 0,      // cooperative launches are not simulated
            97 => self.shared_per_block,
            106 => self.blocks_per_multiprocessor,
            111 => reserved,
            115 => 1, // memory pools
            _ => return None,
        })
    }

    /// Blocks of a kernel that fit on one multiprocessor at once.
    ///
    /// `registers` of a thread is 0 where it is not known, and then does not limit.
    pub(crate) fn active_blocks(&self, threads: u32, registers: u32, shared: u64) -> u32 {
        if threads == 0 || threads > BLOCK_THREADS || shared > self.shared_per_block as u64 {
            return 0;
        }
        let warps = threads.div_ceil(32);
        let by_threads = self.threads_per_multiprocessor as u32 / (warps * 32);
        // registers are given to warps in units of 256
        let by_registers =
            if registers == 0 { u32::MAX } else { REGISTERS / ((registers * 32).next_multiple_of(256) * warps) };
        let reserved = if self.capability >= 80 { SHARED_RESERVED as u64 } else { 0 };
        let by_shared = match shared + reserved {
            0 => u64::MAX,
            bytes => self.shared_per_multiprocessor as u64 / bytes.next_multiple_of(128),
        };
        let blocks = self.blocks_per_multiprocessor as u32;
        blocks.min(by_threads).min(by_registers).min(u32::try_from(by_shared).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_between_two_rows_take_the_earlier_limits() {
        let card = Card::of(103);
        assert_eq!((card.capability, card.multiprocessors), (103, 148));
        assert_eq!(card.attribute(75, 0), Some(10));
        assert_eq!(card.attribute(76, 0), Some(3));
    }

    #[test]
    fn a_block_never_gets_more_shared_memory_than_a_multiprocessor_has() {
        for row in CARDS {
            let card = Card::of(row[0] as u32);
            assert!(card.shared_per_block <= card.shared_per_multiprocessor);
            assert!(card.active_blocks(32, 0, card.shared_per_block as u64) >= 1, "{}", row[0]);
            assert_eq!(card.active_blocks(32, 0, card.shared_per_block as u64 + 1), 0);
        }
    }

    #[test]
    fn occupancy_follows_the_scarcest_resource() {
        let card = Card::of(90);
        assert_eq!(card.active_blocks(1024, 32, 0), 2); // threads
        assert_eq!(card.active_blocks(256, 255, 0), 1); // 8 warps of 8,192 registers
        assert_eq!(card.active_blocks(64, 16, 64 << 10), 3); // shared memory
        assert_eq!(card.active_blocks(32, 16, 0), 32); // blocks
        assert_eq!(card.active_blocks(2048, 16, 0), 0);
    }

    #[test]
    fn unknown_attributes_are_said_to_be_unknown() {
        assert_eq!(Card::of(90).attribute(99_999, 0), None);
        assert_eq!(Card::of(90).attribute(33, 2), Some(3));
    }
}
