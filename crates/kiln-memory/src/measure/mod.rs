//! Memory that is in use: on the heap, in a device's pool, and over one training step.

mod allocator;
mod gpu;
mod growth;
mod measured;
mod meter;
mod open_spans;
mod step_meter;
mod warm;

pub use allocator::{CountingAllocator, HeapCounts};
pub use gpu::GpuMemory;
pub use growth::{Growth, GrowthAlarm};
pub use measured::{Measured, MeasuredPhase, Sample};
pub use meter::{Meter, Span};
pub use step_meter::StepMeter;
pub use warm::{thread_scratch_bytes, warm_thread, warm_threads};
