//! PTX text and how it runs: reading, lowering to typed operations, and an interpreter of warps in lockstep.
//!
//! ```
//! use kiln_cuda_sim::ptx::{Buffers, Launch, Limits, Module};
//!
//! let module = Module::parse(
//!     ".version 8.7\n.target sm_90\n.address_size 64\n\
//!      .visible .entry answer(.param .u64 out) {\n\
//!      .reg .b32 %r<2>; .reg .b64 %rd<2>;\n\
//!      ld.param.b64 %rd1, [out]; mov.b32 %r1, 42; st.global.b32 [%rd1], %r1; ret; }",
//! )?;
//! let mut memory = Buffers::default();
//! let out = memory.allocate(4);
//! let launch = Launch { grid: [1, 1, 1], block: [1, 1, 1], shared: 0, params: &out.to_le_bytes(), globals: &[] };
//! module.kernel("answer").ok_or("no such kernel")?.run(&launch, &memory, &Limits::default())?;
//! assert_eq!(memory.read(out, 4), 42_u32.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod launch;
mod lower;
mod machine;
mod memory;
mod module;
mod run;
mod text;

pub use error::{ExecError, Fault, PtxError, Space};
pub use launch::{Counts, Launch, Limits, Traffic};
pub use memory::{Buffers, Memory, Region};
pub use module::{Global, Kernel, Module, Param};
