//! `cargo xtask fuzz`: the targets in fuzz/, each for a limited time.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cli::Fuzz;
use kiln_cli::usage::Usage;

/// All targets, with the folders of their initial inputs.
const TARGETS: [(&str, &[&str]); 9] = [
    ("jpeg", &["fixtures/images", "fuzz/seeds/images"]),
    ("png", &["fixtures/images", "fuzz/seeds/images"]),
    ("tiff", &["fixtures/images", "fixtures/geotiff", "fuzz/seeds/images"]),
    ("other", &["fixtures/images", "fuzz/seeds/images"]),
    ("raster", &["fixtures/geotiff", "fixtures/images", "fuzz/seeds/images"]),
    ("idx", &["fuzz/seeds/idx"]),
    ("cifar", &["fuzz/seeds/cifar"]),
    ("state", &["fuzz/seeds/state"]),
    ("tokens", &["fuzz/seeds/tokens"]),
];

pub(crate) fn run(arguments: &Fuzz) -> Result<()> {
    let chosen = chosen(&arguments.targets)?;
    ensure!(
        succeeds(Command::new("rustup").args(["run", "nightly", "rustc", "--version"])),
        "fuzzing needs the nightly toolchain: `rustup toolchain install nightly`"
    );
    ensure!(
        succeeds(Command::new("cargo").args(["fuzz", "--version"])),
        "fuzzing needs cargo-fuzz: `cargo install cargo-fuzz`"
    );
    for (target, seeds) in chosen {
        let corpus = format!("fuzz/corpus/{target}");
        fs::create_dir_all(&corpus).with_context(|| format!("cannot make '{corpus}'"))?;
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "cargo", "fuzz", "run", target, &corpus]).args(seeds).arg("--");
        command.arg(format!("-max_total_time={}", arguments.seconds));
        // An input that takes longer, or more memory, is a finding. The library's own limit is 16 MiB an image, which the targets check;
        // the C code allocates at most as much in addition. A sanitizer keeps 256 MiB of freed memory.
        command.args(["-timeout=20", "-malloc_limit_mb=64", "-rss_limit_mb=1024", "-print_final_stats=1"]);
        let status = command.status().context("cannot run cargo fuzz")?;
        ensure!(status.success(), "{target}: found an input that fails, now in fuzz/artifacts/{target}");
        tracing::info!("{target}: {} s without a finding", arguments.seconds);
    }
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<(&'static str, &'static [&'static str])>> {
    if !Path::new("fuzz/Cargo.toml").is_file() {
        bail!(Usage("no fuzz/ here, expected the project's own directory".into()));
    }
    let known = || TARGETS.map(|(name, _)| name).join(", ");
    let find = |name: &String| TARGETS.into_iter().find(|(target, _)| target == name);
    match names.iter().find(|name| find(name).is_none()) {
        Some(unknown) => bail!(Usage(format!("no fuzz target '{unknown}', expected one of {}", known()))),
        None if names.is_empty() => Ok(TARGETS.to_vec()),
        None => Ok(names.iter().filter_map(find).collect()),
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_that_of_the_fuzz_workspace() {
        let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let bins = manifest["bin"].as_array().unwrap();
        let names: Vec<&str> = bins.iter().map(|bin| bin["name"].as_str().unwrap()).collect();
        assert_eq!(names, TARGETS.map(|(name, _)| name));
        for seeds in TARGETS.iter().flat_map(|(_, seeds)| *seeds) {
            assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(seeds).is_dir(), "{seeds}");
        }
    }
}
