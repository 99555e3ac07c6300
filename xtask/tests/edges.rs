//! The allowed edges between the crates of the workspace, as data.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Who may depend on whom. A technique crate (data, precision, accumulation, checkpointing, memory, recovery)
/// depends on no other crate of the workspace; kiln-training is the only one that sees two of them.
const ALLOWED: [(&str, &[&str]); 6] = [
    ("kiln-data", &[]),
    ("kiln-memory", &[]),
    ("kiln-models", &[]),
    ("kiln-training", &["kiln-data"]),
    ("benches", &["kiln-data", "kiln-memory", "kiln-models", "kiln-training"]),
    ("xtask", &["kiln-data", "kiln-memory", "kiln-models", "kiln-training"]),
];

fn workspace() -> cargo_metadata::Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().other_options(["--offline".into()]).exec().unwrap()
}

#[test]
fn crates_depend_only_on_whom_they_may() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into();
    let metadata = workspace();
    let members: BTreeSet<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(members, allowed.keys().copied().collect(), "the table of edges lists other crates than the workspace");
    for package in &metadata.packages {
        for dependency in &package.dependencies {
            let (from, to) = (package.name.as_str(), dependency.name.as_str());
            if members.contains(to) && dependency.kind != DependencyKind::Development {
                assert!(allowed[from].contains(&to), "{from} depends on {to}, which the architecture does not allow");
            }
        }
    }
}

#[test]
fn directories_carry_the_names_of_their_packages() {
    for package in &workspace().packages {
        let directory = package.manifest_path.parent().and_then(|path| path.file_name());
        assert_eq!(directory, Some(package.name.as_str()));
    }
}

#[test]
fn library_crates_use_no_anyhow_and_every_version_stands_in_the_workspace() {
    for package in &workspace().packages {
        let text = std::fs::read_to_string(&package.manifest_path).unwrap();
        let table: toml::Table = text.parse().unwrap();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, value) in table.get(section).and_then(|s| s.as_table()).into_iter().flatten() {
                let inherited = value.get("workspace").and_then(|w| w.as_bool()) == Some(true);
                assert!(inherited, "{}: {name} must inherit its version from the workspace", package.name);
                let library = package.name.starts_with("kiln-");
                assert!(
                    !(library && name == "anyhow"),
                    "{}: a library crate has an error type of its own",
                    package.name
                );
            }
        }
    }
}
