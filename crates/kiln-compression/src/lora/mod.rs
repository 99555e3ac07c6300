//! Low-rank adapters: LoRA (Hu et al. 2022) and DoRA (Liu et al. 2024), in peft's form and files.

mod adapters;
mod low_rank;
mod peft;
mod peft_config;

pub use adapters::{Adapters, Factors};
pub use low_rank::{Adapter, LowRank};
