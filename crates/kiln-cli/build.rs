//! Tells the program which burn and which compiler it is built with.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    // Of the workspace, or of the package when it is built by itself.
    let lock = folder.ancestors().map(|folder| folder.join("Cargo.lock")).find(|file| file.is_file());
    let burn = lock.as_deref().and_then(burn_of);
    println!("cargo::rustc-env=KILN_BURN={}", burn.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=KILN_RUSTC={}", compiler().as_deref().unwrap_or("unknown"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    if let Some(lock) = lock {
        println!("cargo::rerun-if-changed={}", lock.display());
    }
}

/// The version of burn in a lock file.
fn burn_of(lock: &Path) -> Option<String> {
    let text = fs::read_to_string(lock).ok()?;
    let (_, after) = text.split_once("name = \"burn\"\nversion = \"")?;
    Some(after.split('"').next()?.to_owned())
}

/// As `rustc --version` says it.
fn compiler() -> Option<String> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
