//! Records of optimizers: finds the format of their state, and converts it to another format.

mod convert;
mod format;
mod leaves;
mod state;

pub use convert::{check_record, to_f32, to_quantized};
pub use format::StateFormat;
