//! `cargo xtask check`: the checks before a commit, cheapest first.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use kiln_cli::usage::Usage;

use crate::cli::Check;
use crate::package::published;

/// A group of checks; the tests are the last.
struct Step {
    name: &'static str,
    cargo: &'static [&'static str],
    environment: Option<(&'static str, &'static str)>,
}

const STEPS: [Step; 5] = [
    Step { name: "format", cargo: &["fmt", "--all", "--check"], environment: None },
    Step {
        name: "sources",
        cargo: &[
            "test",
            "--quiet",
            "--test",
            "xtask",
            "--",
            "edges::",
            "figures::",
            "circles::",
            "openings::",
            "packages::",
            "source::",
            "unused::",
            "versions::",
        ],
        environment: None,
    },
    Step {
        name: "lints",
        cargo: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            "benches/criterion",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        environment: None,
    },
    Step {
        name: "documentation",
        cargo: &["doc", "--workspace", "--no-deps", "--quiet"],
        environment: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
    Step { name: "tests", cargo: &["test", "--quiet"], environment: None },
];

pub(crate) fn run(arguments: &Check) -> Result<()> {
    if let Some(revision) = &arguments.semver {
        return interfaces(revision, &arguments.crates);
    }
    let steps = if arguments.without_tests { &STEPS[..STEPS.len() - 1] } else { &STEPS };
    for Step { name, cargo, environment } in steps {
        let started = Instant::now();
        let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
        let status = command.args(*cargo).envs(*environment).status().context("cannot run cargo")?;
        ensure!(status.success(), "{name}: `cargo {}` failed", cargo.join(" "));
        tracing::info!("{name}: passed in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Compares the public interfaces of published libraries with those at `revision`, under the default features.
fn interfaces(revision: &str, only: &[String]) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // The library of kiln-cli is shared only by the workspace's own programs.
    let libraries: Vec<String> = published(&root)?.into_iter().filter(|name| name != "kiln-cli").collect();
    if let Some(unknown) = only.iter().find(|name| !libraries.contains(name)) {
        bail!(Usage(format!(
            "'{unknown}' is not a library that is published, expected one of {}",
            libraries.join(", ")
        )));
    }
    let chosen = if only.is_empty() { &libraries } else { only };
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.current_dir(root).args([
        "semver-checks",
        "check-release",
        "--default-features",
        "--baseline-rev",
        revision,
    ]);
    command.args(chosen.iter().flat_map(|name| ["--package", name.as_str()]));
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "`cargo semver-checks` failed; scripts/publish-tools.sh semver-checks installs it");
    Ok(())
}
