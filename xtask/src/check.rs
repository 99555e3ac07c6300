//! `cargo xtask check`: the checks before a commit, cheapest first.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use kiln_cli::usage::Usage;

use crate::cargo::cargo;
use crate::cli::Check;
use crate::package::published;

/// The name of a group of checks, and cargo's arguments.
type Step = (&'static str, &'static str);

/// The project's workspace; the tests are last.
const STEPS: [Step; 6] = [
    ("format", "fmt --all --check"),
    (
        "format of the CUDA emulator",
        "fmt --manifest-path tools/cuda-sim/Cargo.toml --check --package kiln-cuda-sim --package kiln-tests \
         --package kiln-vulkan-faults",
    ),
    (
        "sources",
        "test --quiet --test xtask -- edges:: figures:: circles:: openings:: packages:: source:: unused:: versions::",
    ),
    ("lints", "clippy --workspace --all-targets --features benches/criterion --quiet -- -D warnings"),
    ("documentation", "doc --workspace --no-deps --quiet"),
    ("tests", "test --quiet"),
];

/// The CUDA emulator's workspace, with the tests of Kiln on it.
const CUDA: [Step; 3] = [
    ("lints", "test --manifest-path tools/cuda-sim/Cargo.toml --workspace --no-run"),
    ("documentation", "doc --manifest-path tools/cuda-sim/Cargo.toml --package kiln-cuda-sim --no-deps --quiet"),
    ("tests", "test --manifest-path tools/cuda-sim/Cargo.toml --workspace"),
];
/// In that workspace clippy takes the compiler's place for its own crates: what is linted is what then runs. A lint of its own would compile
/// all dependencies once more. The second variable is cargo-clippy's own way to hand an argument to clippy-driver.
const LINTED: [(&str, &str); 2] =
    [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings")];

/// The program with all of burn's GPU runtimes.
const RUNTIMES: [Step; 1] = [(
    "lints of burn's GPU runtimes",
    "clippy --package xtask --package kiln-layers --package kiln-operations --package kiln-optimizers --package kiln-precision \
     --features xtask/cuda,xtask/rocm,xtask/metal,xtask/vulkan,xtask/webgpu --quiet -- -D warnings",
)];

/// The tests of the GPU path that ask for nothing but refused memory, through wgpu.
const WGPU: [Step; 2] = [
    (
        "tests in WGSL",
        "test --manifest-path tools/cuda-sim/Cargo.toml --workspace --test cuda -- layers:: attention:: follow:: lost:: offload:: \
         optimizers::many predicted::steps_of_a_small steps:: streamed:: wgpu:: --skip in_bf16",
    ),
    (
        "tests in SPIR-V",
        "test --manifest-path tools/cuda-sim/Cargo.toml --workspace --test cuda -- layers:: attention:: follow:: lost::what \
         optimizers::many optimizers::adamw_of optimizers::sgd_of steps:: wgpu:: --skip in_bf16",
    ),
];
/// The variable that says where those tests run, and its value for each of them.
const ON_GPU: &str = "KILN_TEST_GPU";
const LANGUAGES: [&str; 2] = ["wgpu", "vulkan"];

pub(crate) fn run(arguments: &Check) -> Result<()> {
    if let Some(revision) = &arguments.semver {
        return interfaces(revision, &arguments.crates);
    }
    let (steps, filter) = match &arguments.cuda {
        Some(Some(filter)) if arguments.without_tests => {
            bail!(Usage(format!("--cuda {filter} chooses tests, expected --cuda alone beside --without-tests")))
        }
        Some(Some(filter)) => (&CUDA[CUDA.len() - 1..], Some(filter)),
        Some(None) => (&CUDA[..CUDA.len() - usize::from(arguments.without_tests)], None),
        None if arguments.wgpu => (&WGPU[..], None),
        None if arguments.runtimes => (&RUNTIMES[..], None),
        None => (&STEPS[..STEPS.len() - usize::from(arguments.without_tests)], None),
    };
    for (place, (name, words)) in steps.iter().enumerate() {
        let started = Instant::now();
        let all = words.split(' ').chain(filter.map(String::as_str));
        let mut command = cargo(&root());
        command.args(all).env("RUSTDOCFLAGS", "-D warnings");
        if arguments.wgpu {
            command.env(ON_GPU, LANGUAGES[place]);
        }
        if arguments.wgpu || arguments.cuda.is_some() {
            command.envs(LINTED);
        }
        let status = command.status().context("cannot run cargo")?;
        ensure!(status.success(), "{name}: `cargo {words}` failed");
        tracing::info!("{name}: passed in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares the public interfaces of published libraries with those at `revision`, under the default features.
fn interfaces(revision: &str, only: &[String]) -> Result<()> {
    // The library of kiln-cli is shared only by the workspace's own programs.
    let libraries: Vec<String> = published(&root())?.into_iter().filter(|name| name != "kiln-cli").collect();
    if let Some(unknown) = only.iter().find(|name| !libraries.contains(name)) {
        bail!(Usage(format!(
            "'{unknown}' is not a library that is published, expected one of {}",
            libraries.join(", ")
        )));
    }
    let chosen = if only.is_empty() { &libraries } else { only };
    let mut command = cargo(&root());
    command.args(["semver-checks", "check-release", "--default-features", "--baseline-rev", revision]);
    command.args(chosen.iter().flat_map(|name| ["--package", name.as_str()]));
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "`cargo semver-checks` failed; scripts/publish-tools.sh semver-checks installs it");
    Ok(())
}
