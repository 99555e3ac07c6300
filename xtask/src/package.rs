//! `cargo xtask package`: packs each crate as for crates.io, unpacks and compiles it. It publishes nothing.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;
use toml::{Table, Value as Toml};

/// The files that every package has.
const FILES: [&str; 5] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"];
/// A larger package contains files that it should not; crates.io allows ten times as much.
const MOST_BYTES: u64 = 1 << 20;
/// The top-level domain that no real address has (RFC 2606).
const PLACEHOLDER: &str = ".invalid";

/// A crate that is published.
struct Crate {
    name: String,
    version: String,
    repository: String,
}

impl Crate {
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

pub(crate) fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let metadata = metadata(&root)?;
    let target = metadata["target_directory"].as_str().context("cargo names no target directory")?;
    let crates = public(&metadata);
    ensure!(!crates.is_empty(), "no crate is published");

    // Verifying would compile burn once for each crate, because cargo gives each package a workspace of its own.
    let names = crates.iter().flat_map(|found| ["--package", found.name.as_str()]);
    let pack = ["package", "--quiet", "--no-verify", "--allow-dirty"].into_iter().chain(names);
    cargo(&root, &pack.collect::<Vec<_>>())?;

    let packages = Path::new(target).join("package");
    let workspace = packages.join("workspace");
    if workspace.exists() {
        fs::remove_dir_all(&workspace)?;
    }
    fs::create_dir_all(&workspace)?;
    for found in &crates {
        unpack(&packages.join(format!("{}.crate", found.folder())), &workspace, found)?;
    }
    let manifest: Table = fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
    fs::write(workspace.join("Cargo.toml"), toml::to_string(&together(&manifest, &crates))?)?;
    fs::copy(root.join("Cargo.lock"), workspace.join("Cargo.lock"))?;
    cargo(&workspace, &["build", "--quiet", "--workspace", "--lib", "--bins", "--target-dir", target])?;

    tracing::info!("{} packages compile with nothing but what is in them", crates.len());
    if crates.iter().any(|found| found.repository.contains(PLACEHOLDER)) {
        tracing::warn!("`repository` in Cargo.toml is a placeholder; see docs/maintaining.md before publishing");
    }
    Ok(())
}

/// Runs cargo and returns its output. Its messages go to the terminal.
fn cargo(folder: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let mut command = crate::cargo::cargo(folder);
    command.args(arguments).stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo")?;
    ensure!(output.status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(output.stdout)
}

fn metadata(root: &Path) -> Result<Value> {
    Ok(serde_json::from_slice(&cargo(root, &["metadata", "--no-deps", "--format-version", "1"])?)?)
}

/// The names of the published crates.
pub(crate) fn published(root: &Path) -> Result<Vec<String>> {
    Ok(public(&metadata(root)?).into_iter().map(|found| found.name).collect())
}

/// The crates whose manifest does not say `publish = false`.
fn public(metadata: &Value) -> Vec<Crate> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| package["publish"].is_null())
        .map(|package| Crate {
            name: text(&package["name"]),
            version: text(&package["version"]),
            repository: text(&package["repository"]),
        })
        .collect()
}

/// Unpacks an archive. Fails if it is too large or lacks a file that every package has.
fn unpack(archive: &Path, folder: &Path, found: &Crate) -> Result<()> {
    let bytes = fs::metadata(archive).with_context(|| format!("no package '{}'", archive.display()))?.len();
    ensure!(bytes <= MOST_BYTES, "the package of {} has {bytes} bytes, expected at most {MOST_BYTES}", found.name);
    let mut files = tar::Archive::new(GzDecoder::new(File::open(archive)?));
    // All files of a package have one date. cargo would otherwise reuse the compilation of an earlier package.
    files.set_preserve_mtime(false);
    files.unpack(folder)?;
    let unpacked = folder.join(found.folder());
    let lacking: Vec<&str> = FILES.into_iter().filter(|file| !unpacked.join(file).is_file()).collect();
    ensure!(lacking.is_empty(), "the package of {} lacks {}", found.name, lacking.join(", "));
    Ok(())
}

/// A workspace of the packages, in which each depends on the unpacked others. The dependencies are compiled with the project's settings,
/// so that they are not compiled again. The packages themselves are compiled in the least time.
fn together(manifest: &Table, crates: &[Crate]) -> Table {
    let member = |found: &Crate| Toml::String(found.folder());
    let mut workspace = Table::new();
    workspace.insert("resolver".into(), "3".into());
    workspace.insert("members".into(), crates.iter().map(member).collect::<Vec<_>>().into());

    let patch = crates.iter().map(|found| {
        let path = Table::from_iter([("path".to_owned(), member(found))]);
        (found.name.clone(), Toml::Table(path))
    });
    let patch = Table::from_iter([("crates-io".to_owned(), Toml::Table(patch.collect()))]);

    let mut profile = manifest.get("profile").and_then(Toml::as_table).cloned().unwrap_or_default();
    let dev = profile.get_mut("dev").and_then(Toml::as_table_mut);
    if let Some(packages) = dev.and_then(|dev| dev.get_mut("package")).and_then(Toml::as_table_mut) {
        for found in crates {
            packages.insert(found.name.clone(), Table::from_iter([("opt-level".to_owned(), Toml::Integer(0))]).into());
        }
    }
    Table::from_iter(
        [("workspace", workspace), ("patch", patch), ("profile", profile)]
            .map(|(name, table)| (name.into(), table.into())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Crate> {
        let metadata = serde_json::json!({ "packages": [
            { "name": "kiln-a", "version": "0.1.0", "publish": null, "repository": "https://example.invalid/kiln" },
            { "name": "xtask", "version": "0.1.0", "publish": [], "repository": null },
            { "name": "kiln-b", "version": "0.2.0", "publish": null, "repository": null },
        ]});
        public(&metadata)
    }

    #[test]
    fn crates_that_are_not_published_are_left_out() {
        let names: Vec<String> = two().iter().map(Crate::folder).collect();
        assert_eq!(names, ["kiln-a-0.1.0", "kiln-b-0.2.0"]);
    }

    #[test]
    fn the_workspace_keeps_how_dependencies_are_compiled() {
        let manifest = "[profile.dev]\nopt-level = 1\n[profile.dev.package.gemm]\nopt-level = 3\n[profile.dev.package.kiln-a]\nopt-level = 3";
        let together = together(&manifest.parse().unwrap(), &two());
        assert_eq!(together["profile"]["dev"]["opt-level"].as_integer(), Some(1));
        assert_eq!(together["profile"]["dev"]["package"]["gemm"]["opt-level"].as_integer(), Some(3));
        assert_eq!(together["profile"]["dev"]["package"]["kiln-a"]["opt-level"].as_integer(), Some(0));
        assert_eq!(together["patch"]["crates-io"]["kiln-b"]["path"].as_str(), Some("kiln-b-0.2.0"));
        assert_eq!(together["workspace"]["members"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn a_package_without_its_licence_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("kiln-a-0.1.0.crate");
        let gz = flate2::write::GzEncoder::new(File::create(&archive).unwrap(), flate2::Compression::fast());
        let mut tar = tar::Builder::new(gz);
        for file in FILES.iter().filter(|file| !file.starts_with("LICENSE")) {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o644);
            tar.append_data(&mut header, format!("kiln-a-0.1.0/{file}"), &b"\n"[..]).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap();
        let error = unpack(&archive, folder.path(), &two()[0]).unwrap_err();
        assert_eq!(error.to_string(), "the package of kiln-a lacks LICENSE-APACHE, LICENSE-MIT");
    }
}
