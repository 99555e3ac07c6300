//! The heap of this process, which is the memory of burn's CPU device.

use kiln_checkpointing::MemoryUse;
use kiln_memory::{CountingAllocator, Meter, ReusingAllocator};

/// The program's allocator.
#[global_allocator]
pub static HEAP: CountingAllocator<ReusingAllocator> = CountingAllocator::over(ReusingAllocator::new());

/// The bytes in use before, after and during `run`: the gauge of [`kiln_checkpointing::measure_blocks`].
pub fn heap_use(run: &mut dyn FnMut()) -> MemoryUse {
    let before = HEAP.live_bytes() as u64;
    let span = Meter::of_heap(&HEAP).span();
    run();
    MemoryUse { before, after: HEAP.live_bytes() as u64, peak: before + span.peak_bytes() }
}
