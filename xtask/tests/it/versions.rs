//! Which releases of burn, of CubeCL and of Rust the crates require.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::edges::packages;

/// Any patch release of burn 0.22 from the tested one on: only its public interface is used.
const COMPATIBLE: &str = "~0.22.1";
/// Exactly this release: the crate depends on private details of burn.
const PINNED: &str = "=0.22.1";
const PINNED_CUBECL: &str = "=0.11.3";

/// Requirements of burn's and CubeCL's crates beyond burn itself, for each published crate that has any; docs/maintaining.md has
/// the reasons.
const REQUIRED: [(&str, &[(&str, &str)]); 10] = [
    ("kiln-checkpointing", &[("burn-autodiff", PINNED)]),
    ("kiln-cli", &[("cubecl", PINNED_CUBECL)]),
    ("kiln-compression", &[("burn-pack", COMPATIBLE)]),
    (
        "kiln-memory",
        &[("burn-autodiff", PINNED), ("burn-cubecl", PINNED), ("burn-flex", PINNED), ("cubecl-runtime", PINNED_CUBECL)],
    ),
    ("kiln-layers", &[("burn-cubecl", PINNED)]),
    ("kiln-operations", &[("burn-cubecl", PINNED), ("burn-router", PINNED)]),
    ("kiln-optimizers", &[("burn-cubecl", PINNED), ("burn-pack", COMPATIBLE)]),
    ("kiln-parallel", &[("burn-autodiff", PINNED)]),
    ("kiln-precision", &[("burn-cubecl", PINNED)]),
    ("kiln-training", &[("burn-pack", COMPATIBLE)]),
];

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)).unwrap()
}

fn toml(file: &str) -> toml::Table {
    read(file).parse().unwrap()
}

#[test]
fn crates_ask_for_the_releases_of_burn_in_the_table() {
    let mut expected = BTreeMap::from(REQUIRED);
    for package in packages().iter().filter(|package| package["publish"].is_null()) {
        let name = package["name"].as_str().unwrap();
        let mut found: Vec<(&str, &str)> = vec![];
        for dependency in package["dependencies"].as_array().unwrap() {
            let (to, requirement) = (dependency["name"].as_str().unwrap(), dependency["req"].as_str().unwrap());
            if to == "burn" {
                assert_eq!(requirement, COMPATIBLE, "{name}: burn");
            } else if (to.starts_with("burn-") || to.starts_with("cubecl")) && dependency["kind"] != "dev" {
                found.push((to, requirement));
            }
        }
        found.sort();
        assert_eq!(found, expected.remove(name).unwrap_or_default(), "{name}");
    }
    assert!(expected.is_empty(), "not published: {expected:?}");
}

/// Measurements and documentation are for one release of burn.
#[test]
fn the_tested_release_of_burn_is_the_one_that_is_pinned() {
    let lock = toml("Cargo.lock");
    for package in lock["package"].as_array().unwrap() {
        let (name, version) = (package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
        let pin = match name {
            "cubecl" | "cubecl-runtime" => PINNED_CUBECL,
            _ if name == "burn" || name.starts_with("burn-") => PINNED,
            _ => continue,
        };
        assert_eq!(format!("={version}"), pin, "{name}");
    }
}

/// The CUDA emulator's workspace shares compiled crates with this one, and its tests are those of this one's dependencies.
#[test]
fn the_emulators_workspace_has_the_versions_and_profiles_of_this_one() {
    let (here, there) = (toml("Cargo.toml"), toml("tools/cuda-sim/Cargo.toml"));
    let (ours, theirs) = (&here["workspace"], &there["workspace"]);
    assert_eq!(ours["lints"], theirs["lints"]);
    for (key, value) in theirs["package"].as_table().unwrap() {
        assert_eq!(&ours["package"][key], value, "workspace.package.{key}");
    }
    let external = theirs["dependencies"].as_table().unwrap().iter().filter(|(_, value)| value.get("path").is_none());
    for (name, value) in external {
        let ours = ours["dependencies"].get(name);
        assert!(ours.is_none_or(|ours| ours == value), "{name}: {value}, and {ours:?} in Cargo.toml");
    }
    let mut profile = there["profile"]["dev"].clone();
    profile["package"].as_table_mut().unwrap().remove("kiln-cuda-sim").unwrap();
    assert_eq!(here["profile"]["dev"], profile);

    let locked = |file| -> BTreeSet<(String, String)> {
        let packages = toml(file)["package"].as_array().unwrap().clone();
        let external = packages.into_iter().filter(|package| package.get("source").is_some());
        external.map(|package| (package["name"].to_string(), package["version"].to_string())).collect()
    };
    let (ours, theirs) = (locked("Cargo.lock"), locked("tools/cuda-sim/Cargo.lock"));
    let others: Vec<_> = theirs.difference(&ours).collect();
    assert!(others.is_empty(), "not in Cargo.lock: {others:?}; copy it to tools/cuda-sim and run cargo there");
}

/// The minimum is tested because it is the only toolchain: cargo refuses to compile a dependency that needs a newer one.
#[test]
fn the_oldest_supported_rust_is_the_one_that_compiles_and_tests() {
    let supported = toml("Cargo.toml")["workspace"]["package"]["rust-version"].as_str().unwrap().to_owned();
    let toolchain = toml("rust-toolchain.toml")["toolchain"]["channel"].as_str().unwrap().to_owned();
    assert_eq!(toolchain, format!("{supported}.0"), "rust-toolchain.toml and rust-version in Cargo.toml");
    assert!(packages().iter().all(|package| package["rust_version"] == supported.as_str()));
    let container = read(".devcontainer/devcontainer.json");
    assert!(container.contains(&format!("rust:{toolchain}")), "the development container has another Rust");
    for word in ["cargo +", "RUSTUP_TOOLCHAIN", "--ignore-rust-version"] {
        assert!(!read(".ci/run").contains(word), ".ci/run chooses another Rust with '{word}'");
    }
}
