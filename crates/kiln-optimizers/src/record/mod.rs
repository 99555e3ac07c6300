//! Records of optimizers: which state they hold, and how it becomes that of another format.

mod convert;
mod format;
mod leaves;
mod state;

pub use convert::{check_record, to_f32, to_quantized};
pub use format::StateFormat;
