//! Gradient checkpointing for any burn program: activations are computed again in the backward pass instead of kept.
//!
//! - [`checkpoint`]: one segment, an ordinary function call inside of a forward pass. [`Checkpoint`] has its choices.
//! - [`Chain`]: blocks that run one after the other by a [`Plan`]: plain, recompute, or offload.
//! - [`solve`]: the fastest plan whose peak stays within a budget, from the [`Cost`] of every block, which [`measure`] finds.
//!   A pure function; [`ChainCost::simulate`] says what any plan comes to.
//!
//! Gradients are those of the plain run bit for bit: dropout draws the same numbers twice, batch-norm's statistics move once.
//! The guide is `docs/checkpointing.md`.
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
//! // … or all of them, four by four.
//! let y = y + Chain::new(&layers).run(&Plan::every(8, 4)?, x, |layer, x| gelu(layer.forward(x)))?;
//! let gradients = y.mean().backward();
//! assert!(layers.iter().all(|layer| layer.weight.val().grad(&gradients).is_some()));
//! # Ok::<(), kiln_checkpointing::Error>(())
//! ```
//!
//! *Architecture invariant*: this crate knows no model, no optimizer and no allocator. It sees modules, tensors, and numbers of
//! bytes and seconds. How it fits into burn's graph is told in `hub.rs`.

#[cfg(not(any(feature = "flex", feature = "cuda")))]
compile_error!("a custom backward pass names the backend's types: enable the feature `flex` or `cuda`");

mod chain;
mod checkpoint;
mod cost;
mod error;
mod first;
mod host;
mod hub;
mod measure;
mod plan;
mod random;
mod replay;
mod segment;
mod solve;
mod tensors;

pub use chain::Chain;
pub use checkpoint::{Checkpoint, checkpoint};
pub use cost::{ChainCost, Cost, Outcome};
pub use error::Error;
pub use measure::{Gauge, measure};
pub use plan::{Mode, Plan, PlanSegment};
pub use solve::{least, solve};
pub use tensors::{TensorMap, Tensors};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/checkpointing.md")]
struct Guide;
