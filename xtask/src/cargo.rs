//! Cargo as the commands of `xtask` run it.

use std::path::Path;
use std::process::Command;

/// Cargo in `folder`, without the variables that `cargo run` sets for this program: build scripts that look at them, as that of ring, would
/// run again, and everything that depends on them, as burn's CUDA backend, would be compiled anew.
pub(crate) fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    let of_package = |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        command.env_remove(name);
    }
    command.current_dir(folder);
    command
}
