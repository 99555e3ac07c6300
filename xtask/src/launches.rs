//! `cargo xtask launches`: kernels launched and bytes moved on CUDA, by operation and by training step, measured on the CUDA emulator.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::cargo::cargo;
use crate::cli::Launches;

/// What a piece of work took, as the account's tests write it.
#[derive(Clone, Deserialize)]
struct Figures {
    launches: u64,
    bytes: u64,
    peak_bytes: u64,
    waits: u64,
    kernels: BTreeMap<String, [u64; 2]>,
}

type Account = BTreeMap<String, Figures>;
/// The same as JSON, with all that stands in it.
type Values = BTreeMap<String, Value>;

/// The committed numbers, which the tests hold.
fn committed() -> PathBuf {
    root().join("benches/results/launches.json")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn run(arguments: &Launches) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut command = cargo(&root());
    command.args(["test", "--quiet", "--manifest-path", "tools/cuda-sim/Cargo.toml", "--workspace"]);
    command.args(["--test", "cuda", "account::"]).env("KILN_LAUNCHES", folder.path());
    command.env("KILN_LAUNCHES_ONLY", arguments.only.as_deref().unwrap_or_default());
    ensure!(command.status().context("cannot run cargo")?.success(), "the account could not be taken");
    let mut values = Values::new();
    for entry in fs::read_dir(folder.path())? {
        values.extend(read(&entry?.path())?);
    }
    ensure!(!values.is_empty(), "no work has a name with '{}'", arguments.only.as_deref().unwrap_or_default());
    let mut before = if committed().exists() { read(&committed())? } else { Values::new() };
    for line in table(&account(&values)?, &account(&before)?, arguments.kernels) {
        tracing::info!("{line}");
    }
    if arguments.accept {
        before.extend(values);
        fs::write(committed(), serde_json::to_string_pretty(&before)? + "\n")?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Values> {
    serde_json::from_slice(&fs::read(path)?).with_context(|| format!("cannot read '{}'", path.display()))
}

fn account(values: &Values) -> Result<Account> {
    let figures = |(name, value): (&String, &Value)| Ok((name.clone(), serde_json::from_value(value.clone())?));
    values.iter().map(figures).collect()
}

/// A line for each piece of work, with the change of its launches and bytes, and its kernels if they are wanted.
fn table(account: &Account, before: &Account, kernels: bool) -> Vec<String> {
    let mut lines =
        vec![format!("{:<42} {:>16} {:>20} {:>8} {:>6}", "work", "launches", "GB moved", "GB peak", "waits")];
    for (name, figures) in account {
        let was = before.get(name);
        let giga = |bytes: u64| bytes as f64 / 1e9;
        let launches = match was.filter(|was| was.launches != figures.launches) {
            Some(was) => format!("{} -> {}", was.launches, figures.launches),
            None => figures.launches.to_string(),
        };
        let bytes = match was.filter(|was| was.bytes != figures.bytes) {
            Some(was) => format!("{:.3} -> {:.3}", giga(was.bytes), giga(figures.bytes)),
            None => format!("{:.3}", giga(figures.bytes)),
        };
        let (peak, waits) = (giga(figures.peak_bytes), figures.waits);
        lines.push(format!("{name:<42} {launches:>16} {bytes:>20} {peak:>8.3} {waits:>6}"));
        if kernels {
            let mut each: Vec<_> = figures.kernels.iter().collect();
            each.sort_by_key(|(_, [_, bytes])| std::cmp::Reverse(*bytes));
            lines.extend(each.iter().map(|(kernel, [count, bytes])| {
                let kernel: String = kernel.chars().take(38).collect();
                format!("    {kernel:<38} {count:>16} {:>20.3}", giga(*bytes))
            }));
        }
    }
    lines
}
