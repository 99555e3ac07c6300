//! Units of tables that use a fixed unit. Sizes in sentences are written by `bytesize`.

/// Bytes of a MiB.
pub const MIB: f64 = (1 << 20) as f64;
