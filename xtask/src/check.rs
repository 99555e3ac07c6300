//! `cargo xtask check`: what must hold before a commit, cheapest first.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cli::Check;

/// A part of what must hold; the tests are the last.
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
