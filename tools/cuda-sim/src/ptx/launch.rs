//! The arguments of a launch, its bounds, and its counts.

/// The arguments of `cuLaunchKernel`.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Blocks of the grid (x, y, z).
    pub grid: [u32; 3],
    /// Threads of a block (x, y, z).
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The parameters, laid out as [`Kernel::params`](super::Kernel::params) says;
    /// [`Kernel::param_bytes`](super::Kernel::param_bytes) long.
    pub params: &'a [u8],
    /// Device addresses of [`Module::globals`](super::Module::globals), in that order.
    pub globals: &'a [u64],
}

/// Bounds of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Warp instructions after which a launch is stopped. Checked about every million instructions of a thread.
    pub max_instructions: u64,
    /// Threads that run blocks. With 1, blocks run in the order of their index, so that sums of floating-point
    /// numbers by atomic operations repeat bit for bit.
    pub threads: usize,
    /// Byte that fills the shared memory of a block when it begins.
    pub shared_fill: u8,
    /// Whether accesses of the same byte that nothing orders end the launch with [`ExecError::Race`](super::ExecError::Race).
    pub races: bool,
    /// Runs the warps of a block in a random order that this number decides, a few hundred operations at a time. Without it they run in
    /// turn, each up to its next barrier.
    pub order: Option<u64>,
}

impl Default for Limits {
    /// No bound on instructions, a thread for each processor, and zeros in shared memory.
    fn default() -> Self {
        Limits {
            max_instructions: u64::MAX,
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            shared_fill: 0,
            races: false,
            order: None,
        }
    }
}

/// Bytes of device memory that a launch moves: each buffer among its parameters as far as the launch reaches into it, once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// The operations and blocks that a launch ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations run, each once for a whole warp.
    pub instructions: u64,
    /// Blocks run.
    pub blocks: u64,
}
