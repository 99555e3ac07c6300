//! The allowed edges between the crates of the workspace, as data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The ground floor, which every technique may use.
const GROUND: &[&str] = &["kiln-operations"];

/// The allowed dependencies of each crate. A technique (data, layers, optimizers, precision, accumulation, checkpointing, memory,
/// recovery, ..) depends on no other technique. kiln-training is the only library that uses two of them, and kiln-models is built of
/// kiln-layers.
const ALLOWED: [(&str, &[&str]); 20] = [
    ("kiln-accumulation", GROUND),
    ("kiln-checkpointing", GROUND),
    ("kiln-compression", GROUND),
    ("kiln-data", GROUND),
    ("kiln-layers", GROUND),
    ("kiln-memory", GROUND),
    ("kiln-models", &["kiln-layers"]),
    ("kiln-operations", &[]),
    ("kiln-optimizers", GROUND),
    ("kiln-parallel", GROUND),
    ("kiln-precision", GROUND),
    ("kiln-recovery", GROUND),
    ("kiln-report", &[]),
    ("kiln-runs", &["kiln-data", "kiln-report", "kiln-training"]),
    (
        "kiln-training",
        &[
            "kiln-accumulation",
            "kiln-checkpointing",
            "kiln-compression",
            "kiln-data",
            "kiln-memory",
            "kiln-optimizers",
            "kiln-parallel",
            "kiln-precision",
            "kiln-recovery",
        ],
    ),
    (
        "kiln-cli",
        &[
            "kiln-accumulation",
            "kiln-checkpointing",
            "kiln-compression",
            "kiln-data",
            "kiln-layers",
            "kiln-memory",
            "kiln-models",
            "kiln-optimizers",
            "kiln-parallel",
            "kiln-precision",
            "kiln-recovery",
            "kiln-report",
            "kiln-runs",
            "kiln-training",
        ],
    ),
    (
        "benches",
        &[
            "kiln-accumulation",
            "kiln-checkpointing",
            "kiln-cli",
            "kiln-compression",
            "kiln-data",
            "kiln-layers",
            "kiln-memory",
            "kiln-models",
            "kiln-optimizers",
            "kiln-parallel",
            "kiln-precision",
            "kiln-recovery",
            "kiln-report",
            "kiln-runs",
            "kiln-training",
        ],
    ),
    ("browser", &[]),
    ("examples", &["kiln-accumulation", "kiln-checkpointing", "kiln-data", "kiln-models", "kiln-precision"]),
    ("xtask", &["benches", "kiln-cli", "kiln-data", "kiln-runs"]),
];

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let output = Command::new(cargo).args(arguments).arg("--offline").current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The packages of the workspace.
pub(crate) fn packages() -> Vec<Value> {
    packages_of("Cargo.toml")
}

/// The packages of the workspace, and those of the CUDA emulator's.
pub(crate) fn all_packages() -> Vec<Value> {
    [packages(), packages_of("tools/cuda-sim/Cargo.toml")].concat()
}

fn packages_of(manifest: &str) -> Vec<Value> {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1", "--manifest-path", manifest]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn crates_depend_only_on_whom_they_may() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into();
    let packages = packages();
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let members: BTreeSet<String> = packages.iter().map(name).collect();
    assert_eq!(members, allowed.keys().map(|key| key.to_string()).collect(), "the table lists other crates");
    for package in &packages {
        for dependency in package["dependencies"].as_array().unwrap() {
            let (from, to) = (name(package), name(dependency));
            if members.contains(&to) && dependency["kind"] != "dev" {
                let may = allowed[from.as_str()].contains(&to.as_str());
                assert!(may, "{from} depends on {to}, which the architecture does not allow");
            }
        }
    }
}

#[test]
fn directories_carry_the_names_of_their_packages() {
    for package in packages() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let directory = manifest.parent().and_then(Path::file_name).unwrap();
        assert_eq!(directory, package["name"].as_str().unwrap());
    }
}

#[test]
fn library_crates_use_no_anyhow_and_every_version_stands_in_the_workspace() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let text = std::fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let targets = table.get("target").and_then(|targets| targets.as_table()).into_iter().flatten();
        for (section, dependencies) in targets.filter_map(|(_, target)| target.as_table()).chain([&table]).flatten() {
            if !["dependencies", "dev-dependencies", "build-dependencies"].contains(&section.as_str()) {
                continue;
            }
            for (dependency, value) in dependencies.as_table().into_iter().flatten() {
                let inherited = value.get("workspace").and_then(|w| w.as_bool()) == Some(true);
                // Crates that only tests use are given by path and have no version.
                let test =
                    section == "dev-dependencies" && value.get("path").is_some() && value.get("version").is_none();
                assert!(inherited || test, "{name}: {dependency} must inherit its version from the workspace");
                let library = name.starts_with("kiln-") && name != "kiln-cli";
                assert!(!(library && dependency == "anyhow"), "{name}: a library crate has an error type of its own");
            }
        }
    }
}

/// `cargo xtask` and `cargo test` share one compilation of the dependencies only if both request the same features.
#[test]
fn running_and_testing_compile_the_dependencies_with_the_same_features() {
    let tree = |arguments: &[&str]| -> BTreeSet<String> {
        let tree = ["tree", "--prefix", "none", "--format", "{p} {f}"];
        let tree = cargo(&[&tree, arguments].concat());
        // cargo marks a package that was listed before.
        tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    };
    let running = tree(&["--package", "xtask", "--edges", "normal,build"]);
    let testing = tree(&["--edges", "normal,build,dev"]);
    let package = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let needed: BTreeSet<String> = running.iter().map(|line| package(line)).collect();
    let differs = |line: &&String| needed.contains(&package(line)) && !running.contains(*line);
    let twice: Vec<&String> = testing.iter().filter(differs).collect();
    assert!(twice.is_empty(), "compiled twice, because testing asks for other features: {twice:?}");
}
