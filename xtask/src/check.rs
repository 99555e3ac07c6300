//! `cargo xtask check`: what must hold before a commit, cheapest first.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Name, arguments of cargo, and a variable for its environment.
const STEPS: [(&str, &[&str], Option<(&str, &str)>); 5] = [
    ("format", &["fmt", "--all", "--check"], None),
    ("edges between crates", &["test", "--workspace", "--quiet", "--test", "edges"], None),
    ("lints", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"], None),
    ("documentation", &["doc", "--workspace", "--no-deps", "--quiet"], Some(("RUSTDOCFLAGS", "-D warnings"))),
    ("tests", &["test", "--workspace", "--quiet"], None),
];

pub(crate) fn run() -> Result<()> {
    for (name, arguments, variable) in STEPS {
        let started = Instant::now();
        let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
        let status = command.args(arguments).envs(variable).status().context("cannot run cargo")?;
        ensure!(status.success(), "{name}: `cargo {}` failed", arguments.join(" "));
        tracing::info!("{name}: passed in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}
