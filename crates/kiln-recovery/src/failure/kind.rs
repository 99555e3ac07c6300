//! The kinds of memory failures.

use serde::{Deserialize, Serialize};

/// The kind of a memory failure. It decides which remedies can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// No memory was left at that moment. Free memory, use less, or wait.
    OutOfMemory,
    /// One buffer is larger than the device ever hands out. A smaller micro-batch helps, freeing memory does not.
    TooBig,
    /// The device is lost or poisoned: every operation on it fails until the process ends. Never retried.
    DeviceLost,
}
