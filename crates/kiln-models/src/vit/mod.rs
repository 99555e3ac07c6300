//! Vision transformers: Dosovitskiy et al. 2020 and DeiT's sizes (Touvron et al. 2020), as timm builds them.

mod block;
mod config;
mod model;

pub use block::{Patches, VitBlock, VitEncoder};
pub use config::VitConfig;
pub use model::Vit;
