//! The versions and the machine that a run's figures depend on.

use crate::host::{Revision, processor, processors, unknown};

/// The facts of this program on this machine, each with its name.
pub(super) fn facts(device: &str) -> Vec<(String, String)> {
    let version = match Revision::of_program().word() {
        commit if commit == unknown() => env!("CARGO_PKG_VERSION").to_owned(),
        commit => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
    };
    let facts = [
        ("kiln", version),
        ("burn", env!("KILN_BURN").to_owned()),
        ("compiler", env!("KILN_RUSTC").to_owned()),
        ("device", device.to_owned()),
        ("processor", format!("{}, {} threads", processor(), processors())),
        ("system", format!("{} ({})", std::env::consts::OS, std::env::consts::ARCH)),
    ];
    facts.map(|(name, fact)| (name.to_owned(), fact)).to_vec()
}
