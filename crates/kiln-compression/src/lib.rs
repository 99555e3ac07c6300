//! Smaller models for any burn module: quantisation, pruning, distillation, low-rank adapters.
//!
//! *Architecture invariant*: this crate knows no data, no training loop and no architecture. It sees modules, their parameters by
//! path, and closures.

mod distill;
mod error;
mod lora;
mod nest;
mod place;
mod prune;
mod quantize;

pub use distill::{
    CacheLayout, DistillationLoss, FeatureMatching, Tail, Teacher, TeacherCache, TeacherCacheWriter, TopK,
    attention_transfer, rows_at_once,
};
pub use error::Error;
pub use lora::{Adapter, Adapters, Factors, LowRank};
pub use nest::{Nest, Nested};
