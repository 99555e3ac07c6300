//! Units of the tables that have a fixed one. Sizes in sentences go through `bytesize`.

/// Bytes of a MiB.
pub const MIB: f64 = (1 << 20) as f64;
