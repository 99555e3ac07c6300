//! Variables of the environment that burn and drivers read.

use std::ffi::OsStr;
use std::sync::OnceLock;

/// Makes devices of this kind burn's default, if the process has opened none before. Returns whether they are.
pub(super) fn make_default(kind: &'static str) -> bool {
    static DEFAULT: OnceLock<&str> = OnceLock::new();
    let default = DEFAULT.get_or_init(|| {
        set_variable("BURN_DEVICE", kind);
        kind
    });
    *default == kind
}

/// Sets a variable of the environment that burn or a driver reads.
#[allow(unsafe_code, reason = "set_var is unsafe because other threads may read the environment meanwhile")]
pub(super) fn set_variable(name: &str, value: impl AsRef<OsStr>) {
    // SAFETY: the commands open their first device before they start any thread: data sets are opened without one, and batches,
    // tensors and the Ctrl-C handler come later. A driver that has listed its devices may have threads, which wait for work. Replicas,
    // which are threads, find set what the first one has set.
    unsafe { std::env::set_var(name, value) };
}
