//! The parts of a crate that crates.io shows: its manifest, and a README whose example is the tested one of the documentation.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::edges::packages;

/// Crates that are never published.
const PRIVATE: [&str; 4] = ["benches", "browser", "examples", "xtask"];

/// Categories of crates.io that fit; it refuses a crate with one that it does not have.
const CATEGORIES: [&str; 6] = [
    "command-line-utilities",
    "concurrency",
    "development-tools::profiling",
    "memory-management",
    "multimedia::images",
    "science",
];

/// A program has no example in Rust.
const WITHOUT_EXAMPLE: &str = "kiln-cli";

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap()
}

fn folder(package: &Value) -> PathBuf {
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
}

fn published() -> Vec<Value> {
    packages().into_iter().filter(|package| package["publish"].is_null()).collect()
}

#[test]
fn every_crate_is_published_except_those_of_maintainers() {
    let private: Vec<Value> = packages().into_iter().filter(|package| !package["publish"].is_null()).collect();
    let mut names: Vec<&str> = private.iter().map(name).collect();
    names.sort();
    assert_eq!(names, PRIVATE);
}

#[test]
fn manifests_have_what_crates_io_shows() {
    for package in published() {
        let name = name(&package);
        let list = |key: &str| -> Vec<String> { serde_json::from_value(package[key].clone()).unwrap() };
        assert!(package["description"].as_str().is_some_and(|text| text.len() > 20), "{name}: description");
        assert_eq!(package["license"], "MIT OR Apache-2.0", "{name}");
        assert_eq!(package["readme"], "README.md", "{name}");
        assert!(package["repository"].is_string(), "{name}: repository");
        let keywords = list("keywords");
        assert!((1..=5).contains(&keywords.len()), "{name}: {} keywords, expected 1 to 5", keywords.len());
        for keyword in &keywords {
            let legal = keyword.chars().all(|c| c.is_ascii_alphanumeric() || "-_+".contains(c)) && keyword.len() <= 20;
            assert!(legal, "{name}: crates.io refuses the keyword '{keyword}'");
        }
        let categories = list("categories");
        assert!(!categories.is_empty(), "{name}: categories");
        for category in &categories {
            assert!(CATEGORIES.contains(&category.as_str()), "{name}: '{category}' is not in the table of categories");
        }
        assert!(package["metadata"]["docs"]["rs"]["targets"].is_array(), "{name}: package.metadata.docs.rs");
        for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let (here, root) = (folder(&package).join(file), folder(&package).join("../..").join(file));
            assert_eq!(fs::read(here).unwrap(), fs::read(root).unwrap(), "{name}: {file}");
        }
    }
}

/// A dependency with a version must be on crates.io before the crate itself. Tests of two crates use each other. cargo removes a
/// dev-dependency without a version from the package.
#[test]
fn dependencies_between_crates_have_a_version_and_those_of_tests_have_none() {
    let published = published();
    let names: Vec<&str> = published.iter().map(name).collect();
    for package in &published {
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            if names.contains(&to) {
                let version = format!("^{}", package["version"].as_str().unwrap());
                let expected = if dependency["kind"] == "dev" { "*" } else { version.as_str() };
                assert_eq!(dependency["req"], expected, "{} depends on {to}", name(package));
            }
        }
    }
}

/// The first block of code; lines that rustdoc hides are left out.
fn example(text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !matches!(*line, "```" | "```rust"));
    lines.next()?;
    let shown = lines.take_while(|line| *line != "```").filter(|line| !line.trim_start().starts_with("# "));
    Some(shown.map(|line| format!("{line}\n")).collect())
}

#[test]
fn the_example_of_a_readme_is_that_of_the_documentation() {
    for package in published().iter().filter(|package| name(package) != WITHOUT_EXAMPLE) {
        let source = fs::read_to_string(folder(package).join("src/lib.rs")).unwrap();
        let comments = source.lines().map_while(|line| line.strip_prefix("//!"));
        let documentation: String =
            comments.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect();
        let readme = fs::read_to_string(folder(package).join("README.md")).unwrap();
        let tested = example(&documentation).expect("lib.rs opens with an example");
        assert_eq!(example(&readme), Some(tested), "{}", name(package));
    }
}

#[test]
fn readmes_open_with_the_name_and_link_only_to_what_is_there() {
    for package in published() {
        let (name, folder) = (name(&package), folder(&package));
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        assert_eq!(readme.lines().next(), Some(format!("# {name}").as_str()));
        let mut links = 0;
        for link in readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !link.starts_with("https://") {
                let path = link.split('#').next().unwrap();
                assert!(folder.join(path).exists(), "{name}: README.md links to '{link}', which is not there");
                links += usize::from(path.ends_with(".md"));
            }
        }
        assert!(links >= 2, "{name}: README.md has no link to its guide and to the project");
    }
}
