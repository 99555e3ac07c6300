//! Gradient checkpointing for any burn program: activations are computed again in the backward pass instead of kept.
//!
//! - [`checkpoint`] runs one segment: an ordinary function call inside of a forward pass. [`Checkpoint`] adds options.
//! - [`Chain`] runs blocks one after the other as a [`Plan`] says: plain, recomputed, or recomputed from an input in host
//!   memory.
//! - [`Streamed`] has the parameters of blocks in a [`Store`], in host memory or on disk, with gradients and optimizer state: the
//!   parameters of one segment, and of the next one, are in memory at a time.
//! - [`solve`] finds the fastest plan whose peak stays within a budget, from the [`Cost`] of every block, which
//!   [`measure_blocks`] measures. It is a pure function; [`ChainCost::simulate`] computes peak and time of any plan.
//!
//! Gradients are bit for bit those of the plain run: dropout draws the same numbers in both passes, and batch-norm's
//! statistics move once. The guides are `docs/checkpointing.md` and
//! `docs/streaming.md`.
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::activation::gelu;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use kiln_checkpointing::{Chain, Plan, checkpoint};
//!
//! let device = Device::flex().autodiff();
//! let layers: Vec<Linear> = (0..8).map(|_| LinearConfig::new(16, 16).init(&device)).collect();
//! let x = Tensor::<2>::random([4, 16], Distribution::Default, &device);
//!
//! // One segment of two layers …
//! let y = checkpoint(&layers[..2].to_vec(), x.clone(), |layers, x| layers[1].forward(gelu(layers[0].forward(x))));
//! // … or all layers, in segments of four.
//! let y = y + Chain::new(&layers).run(&Plan::every(8, 4)?, x, |layer, x| gelu(layer.forward(x)))?;
//! let gradients = y.mean().backward();
//! assert!(layers.iter().all(|layer| layer.weight.val().grad(&gradients).is_some()));
//! # Ok::<(), kiln_checkpointing::Error>(())
//! ```
//!
//! *Architecture invariant*: this crate knows no model, no optimizer by name and no allocator. It sees modules, tensors, and numbers of
//! bytes and seconds. `autograd/graph.rs` describes how a segment fits into burn's graph.

#[cfg(not(any(feature = "flex", feature = "cube")))]
compile_error!("a custom backward pass names the backend's types: enable the feature `flex` or `cube`");

mod autograd;
mod error;
mod plan;
mod stream;

pub use autograd::{Checkpoint, TensorMap, Tensors, checkpoint};
pub use error::Error;
pub use kiln_operations::RowParts;
pub use plan::{
    Chain, ChainCost, ChainSeed, Cost, MemoryUse, Mode, Plan, PlanCost, PlanSegment, least, measure_blocks, solve,
};
pub use stream::{Blob, Content, Creation, FileStore, HostStore, InitialValues, Parts, Store, Streamed};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/checkpointing.md")]
struct Guide;
