//! An operation of burn's graph: one node with its own gradient, one entry in a recorded step, and the cost that a prediction asks for.
//!
//! - [`Operation`]: one node of burn's graph with its own gradient. [`Kernel`]: a computation on each kind of device, with its [`Cost`].
//!   [`run`] dispatches every operation.
//! - [`LightOperation`], [`run_light`]: an operation that costs less to compute again than to keep.
//! - [`operation`], [`like`]: record an operation on burn's capture device, with the shapes of its outputs and its [`Cost`].
//! - [`Cost`]: scratch memory on each kind of device, which input an output may overwrite, and multiply-adds. kiln-memory asks for it by
//!   the operation's id, so a user's own operation is predicted like those of kiln-layers and kiln-optimizers.
//! - [`accumulate_into`]: a backward pass that adds gradients to sums where it makes them. [`Sinks`]: one that hands them over there.
//! - [`RunningSums`]: sums of gradients to which operations add row after row, so that a batch has the same bits however it is cut.
//! - [`weight_parts`]: a weight in codes of four bits, with a low-rank change, in its parts, which layers read without their sum.
//! - [`FourBitWeight`]: a weight in codes of four bits. [`dynamic_map`]: the levels of codes of eight bits.
//! - [`RowParts`]: a matrix that is in memory some rows at a time. [`update_part`]: an optimizer's update of some rows of a parameter.
//! - [`Cpu`], [`Gpu`]: what predictions need to know of a processor and of a GPU. [`Product`]: the memory that a matrix product takes on a
//!   processor.
//! - [`cpu`], [`simd!`], [`by_dtype!`]: what kernels for burn's CPU device share (feature `flex`, on by default).
//!
//! *Architecture invariant*: this crate knows burn, no operation by name, and none of the other crates.
//!
//! ```
//! use kiln_operations::{Cost, cost};
//!
//! static SQUARE: Cost = Cost { in_place: &[(0, 0)], gpu_scratch: |call, _| call.bytes(0), ..Cost::new("example::square") };
//!
//! cost::register(&SQUARE);
//! assert_eq!(cost::of("example::square").map(|cost| cost.in_place), Some(&[(0, 0)][..]));
//! assert!(cost::of("example::unknown").is_none());
//! ```

mod capture;
pub mod cost;
#[cfg(feature = "flex")]
pub mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod dispatch;
mod dynamic_map;
pub mod four_bits;
#[cfg(feature = "cube")]
mod fused;
mod gpu;
mod graph;
mod operation;
mod product;
mod read_parameter;
mod relay;
mod row_parts;
mod running_sums;
pub mod simd;
mod sinks;
mod sum_pass;
mod sums;
mod updated_part;
mod weight_parts;

pub use capture::{is_capture, like, operation, operations};
pub use cost::{Call, Cost, Operand};
pub use dispatch::{Input, Inputs, Operations, run, run_light};
pub use dynamic_map::dynamic_map;
pub use four_bits::{FOUR_BITS, FourBitWeight, four_bit_lengths, widened_four_bits};
#[cfg(feature = "cube")]
pub use fused::launch;
pub use gpu::Gpu;
#[cfg(feature = "cube")]
pub use operation::CubeKernel;
pub use operation::{Computed, InOrder, Kernel, KernelBackend, LightOperation, Onto, Operation, all};
pub use product::{Cpu, Product, cache_bytes, chain_scratch, enough_rows, has_bf16_pairs, padded_rows};
pub use read_parameter::read_parameter;
pub use relay::{SentSum, SumRelay, SumUse};
pub use row_parts::RowParts;
pub use running_sums::{RunningSums, SumError, SumUses};
pub use sinks::Sinks;
pub use sum_pass::{SumPass, adds_in_order, first_sample, stands_for, takes_parts};
pub use sums::accumulate_into;
pub use updated_part::{UpdatedPart, update_part, updated_part};
pub use weight_parts::{CAST, LOW_RANK, LowRankChange, NESTED, WeightParts, weight_parts};

/// From this many f32 values on, the sums of burn's CPU device add partial sums in the order in which threads finish them, so that the
/// last bits differ from run to run (burn-flex 0.22, `sum_f32_contiguous`).
pub const LARGE_SUM: usize = 4 << 20;
