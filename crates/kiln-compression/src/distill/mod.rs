//! Distillation: a small model learns from the outputs and features of a large one.

mod cache;
mod divergence;
mod features;
mod loss;
mod rows;
mod sums;
mod teacher;

pub use cache::{CacheLayout, TeacherCache, TeacherCacheWriter};
pub use features::{FeatureMatching, attention_transfer};
pub use loss::DistillationLoss;
pub use rows::rows_at_once;
pub use teacher::{Tail, Teacher, TopK};
