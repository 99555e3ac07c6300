//! The command line of maintainers, with the commands of users in it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Train burn models inside a memory budget, and maintain Kiln.
#[derive(Parser)]
#[command(name = "cargo xtask", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) verbosity: kiln_cli::Verbosity,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, parsed once")]
pub(crate) enum Command {
    #[command(flatten)]
    Kiln(kiln_cli::Command),
    /// Make the small data sets in fixtures/ again from the full ones
    Fixtures(Fixtures),
    /// Everything that must hold before a commit, cheapest first
    Check(Check),
    /// Measure what Kiln costs: whole training steps against burn's own loop, their memory, and single functions
    Bench(benches::bench::BenchArguments),
    /// Compare predicted with measured memory on training steps that are drawn at random
    Predictions(benches::predictions::PredictionsArguments),
    /// Train a model with --exact within budgets, in micro-batches, from a store, with failures and kills: all have the same weights
    SameBits(benches::same_bits::SameBitsArguments),
    /// Train a small model with --exact again and again while memory is refused at random places: no step is lost, and all have the same weights
    Failures(benches::failures::FailuresArguments),
    /// Find tables of README.md and docs/ that are older than the code that they describe
    Figures(Figures),
    /// Feed random and damaged files to everything that reads files, each target for a while; needs cargo-fuzz and nightly
    Fuzz(Fuzz),
    /// Find out what this does on a GPU: a numbered list of checks and measurements, each in a process of its own
    Gpu(benches::gpu::GpuArguments),
    /// Measure the sources: lines, short files, exported names that nothing uses, copied constants
    House,
    /// Count kernels launched and bytes moved on CUDA, for operations and training steps, on the CUDA emulator
    Launches(Launches),
    /// Pack the program and its fixtures into dist/*.tar.xz for a machine without Rust
    Dist(Dist),
    /// Pack each crate as crates.io would get it, and compile the packages; publishes nothing
    Package,
}

#[derive(Args)]
pub(crate) struct Check {
    /// Leave out the tests, where they have just run
    #[arg(long)]
    pub(crate) without_tests: bool,
    /// Check the CUDA emulator and the tests of burn's CUDA backend on it, and nothing else; with TEST, only the tests of that name
    #[arg(long, value_name = "TEST", num_args = 0..=1)]
    pub(crate) cuda: Option<Option<String>>,
    /// Run the tests of the GPU path through wgpu, in WGSL and in SPIR-V, on a GPU of this machine or on Mesa's lavapipe, and nothing else
    #[arg(long, conflicts_with_all = ["without_tests", "cuda"])]
    pub(crate) wgpu: bool,
    /// Lint the program with all of burn's GPU runtimes, and nothing else
    #[arg(long, conflicts_with_all = ["without_tests", "cuda", "wgpu"])]
    pub(crate) runtimes: bool,
    /// Compare the public interfaces of the libraries with those at this revision, and nothing else; needs cargo-semver-checks
    /// (scripts/publish-tools.sh)
    #[arg(long, value_name = "REVISION", conflicts_with_all = ["without_tests", "cuda", "wgpu", "runtimes"])]
    pub(crate) semver: Option<String>,
    /// With --semver: only this crate [default: all libraries]
    #[arg(long = "crate", value_name = "NAME", requires = "semver")]
    pub(crate) crates: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Figures {
    /// Only these pages, or PAGE:LINE for the mark in that line [default: all]
    #[arg(value_name = "PAGE")]
    pub(crate) pages: Vec<String>,
    /// Note that the figures are those of the present code, after their commands have run
    #[arg(long)]
    pub(crate) accept: bool,
    /// Another project's folder
    #[arg(long, hide = true)]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Launches {
    /// Only work whose name contains TEXT, such as "gpt2 bf16" or "layer_norm"
    #[arg(value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// List the kernels too
    #[arg(long)]
    pub(crate) kernels: bool,
    /// Write the numbers to benches/results/launches.json, which the tests hold
    #[arg(long)]
    pub(crate) accept: bool,
}

#[derive(Args)]
pub(crate) struct Fixtures {
    /// The full Fashion-MNIST, as `fetch` leaves it
    #[arg(long, value_name = "DIR", default_value = "data/fashion-mnist")]
    pub(crate) data: PathBuf,
    /// Where to write, for comparing with the committed files [default: fixtures/fashion-mnist]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Dist {
    /// Leave out the CUDA backend
    #[arg(long)]
    pub(crate) no_cuda: bool,
    /// Have kernels compiled by NVIDIA's NVRTC, which must be on the machine with the GPU, and not by LLVM
    #[arg(long, conflicts_with = "no_cuda")]
    pub(crate) cuda_cpp: bool,
}

#[derive(Args)]
pub(crate) struct Fuzz {
    /// Which targets: jpeg, png, tiff, other, raster, idx, cifar, state, tokens [default: all of them, one after the other]
    #[arg(value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) seconds: u32,
}
