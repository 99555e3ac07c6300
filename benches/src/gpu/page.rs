//! Makes `docs/results.md` from the committed results.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytesize::ByteSize;
use kiln_runs::replace;
use serde_json::Value;

use super::comparison;
use super::findings::{Findings, Outcome, Table};
use super::runner::all;
use kiln_cli::fixtures;
use kiln_cli::gpu::gpu_index;

const HEAD: &str = "\
# Results on GPUs

Made by `cargo xtask gpu --page` from the results in `benches/results/gpu`; do not edit it by hand.
`cargo xtask gpu` runs the list on a GPU, `cargo xtask gpu --list` prints the list.

";

const NOTHING: &str = "\
Nothing has been measured on a GPU yet. Results of CPUs are in [benches/results](../benches/results).
";

/// For `cargo xtask figures`, before each table.
const MARK: &str = "<!-- figures: cargo xtask gpu | test: benches/src/gpu/page.rs -->\n";

/// Writes the page of this workspace.
pub(crate) fn write() -> Result<()> {
    let root = fixtures::root().context("there is no workspace to write docs/results.md in")?;
    let path = root.join("docs/results.md");
    replace(&path, rendered(&root).as_bytes())?;
    tracing::info!("{}", path.display());
    Ok(())
}

/// The page of the workspace in `root`.
fn rendered(root: &Path) -> String {
    let entries = std::fs::read_dir(root.join("benches/results/gpu")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    let runs: Vec<(String, Vec<Findings>)> = folders
        .iter()
        .map(|folder| (folder.file_name().unwrap_or_default().to_string_lossy().into_owned(), all(folder)))
        .collect();
    page(&runs)
}

/// The page of some runs, each with the name of its directory and its items. Runs that are not on a GPU are left out.
fn page(runs: &[(String, Vec<Findings>)]) -> String {
    let mut page = HEAD.to_owned();
    let of_gpus = |items: &&(String, Vec<Findings>)| {
        items.1.first().is_some_and(|findings| gpu_index(&findings.provenance.device).is_some())
    };
    for (name, items) in runs.iter().filter(of_gpus) {
        section(&mut page, name, items);
    }
    if page.len() == HEAD.len() {
        page.push_str(NOTHING);
    }
    page
}

fn section(page: &mut String, name: &str, items: &[Findings]) {
    let from = &items[0].provenance;
    let gpu = from.gpu.as_ref();
    let _ = writeln!(page, "## {}, {}\n", gpu.map_or("an unknown GPU", |gpu| &gpu.name), from.date);
    if let Some(gpu) = gpu {
        let _ = writeln!(
            page,
            "{}, compute capability {}, driver {}, CUDA {}; {} with {} processors; burn {}, CubeCL {}; Kiln \
             {}, {} build; {} sizes. Files: [{name}](../benches/results/gpu/{name}).\n",
            ByteSize(gpu.total_bytes),
            gpu.compute,
            gpu.driver,
            gpu.cuda,
            from.processor,
            from.cores,
            from.burn,
            from.cubecl,
            from.revision_word(),
            from.build,
            serde_json::to_value(from.sizes).ok().and_then(|size| size.as_str().map(str::to_owned)).unwrap_or_default()
        );
    }
    page.push_str(MARK);
    page.push_str("| | Item | Outcome | Checks | Seconds |\n|---|---|---|---|---|\n");
    for item in items {
        let (passed, checks) = item.score();
        let outcome = item.outcome.name();
        let _ = writeln!(
            page,
            "| {} | {} | {outcome} | {passed} of {checks} | {:.1} |",
            item.item, item.title, item.seconds
        );
    }
    page.push('\n');
    for item in items {
        let _ = writeln!(page, "### {}. {}\n", item.item, item.title);
        if item.provenance.revision_word() != from.revision_word() || item.provenance.date != from.date {
            let _ = writeln!(page, "Of Kiln {} on {}.\n", item.provenance.revision_word(), item.provenance.date);
        }
        if item.outcome != Outcome::Pass {
            let reason = item.reason.as_deref().map_or(String::new(), |reason| format!(": {}", cell(reason)));
            let _ = writeln!(page, "**{}**{reason}\n", item.outcome.name());
        }
        for check in item.checks.iter().filter(|check| !check.pass) {
            let _ = writeln!(page, "- **FAIL** {}: {}", cell(&check.what), cell(&check.says));
        }
        for note in &item.notes {
            let _ = writeln!(page, "- {}", cell(note));
        }
        if !item.notes.is_empty() || item.checks.iter().any(|check| !check.pass) {
            page.push('\n');
        }
        for table in &item.tables {
            let _ = writeln!(page, "{}\n", markdown(table));
        }
    }
    let compared = comparison::tables(items);
    if !compared.is_empty() {
        page.push_str("### Kiln beside PyTorch\n\n");
    }
    for table in &compared {
        let _ = writeln!(page, "{}\n", markdown(table));
    }
}

fn markdown(table: &Table) -> String {
    let mut text = format!(
        "{}:\n\n{MARK}| {} |\n|{}\n",
        table.title,
        table.columns.join(" | "),
        "---|".repeat(table.columns.len())
    );
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(shown).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// A figure in readable form: with its accurate digits, and small ones as powers of ten.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::String(text) => cell(text),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            None => number.to_string(),
            Some(0.0) => "0".into(),
            Some(number) if number.abs() < 0.01 => format!("{number:.1e}"),
            Some(number) if number.abs() < 10.0 => format!("{number:.3}"),
            Some(number) => format!("{number:.1}"),
        },
        other => cell(&other.to_string()),
    }
}

/// The text without characters that break a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provenance::Provenance;

    #[test]
    fn the_page_is_that_of_the_committed_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let committed = std::fs::read_to_string(root.join("docs/results.md")).unwrap_or_default();
        assert!(committed == rendered(&root), "docs/results.md is not up to date: run `cargo xtask gpu --page`");
    }

    #[test]
    fn a_run_of_a_gpu_is_shown_with_what_failed_and_one_of_the_cpu_is_not() {
        let mut findings = Findings::new(2, Provenance::example());
        findings.outcome = Outcome::Fail;
        findings.seconds = 3.24;
        findings.checks.push(super::super::findings::Check {
            what: "bf16 matmul".into(),
            pass: false,
            says: "0.1 | expected 0.016".into(),
        });
        findings.row("Errors", &[("operation", json!("matmul")), ("relative", json!(1.24e-4)), ("n", json!(3))]);
        let text = page(&[("example-2026-11-21".into(), vec![findings.clone()])]);
        for part in [
            "## Example GX (80 GB), 2026-11-21",
            "80.0 GiB, compute capability 9.0, driver 600.1, CUDA 13.1",
            "| 2 | Operations in f32, f16 and bf16 | FAIL | 0 of 1 | 3.2 |",
            "- **FAIL** bf16 matmul: 0.1 \\| expected 0.016",
            "| operation | relative | n |\n|---|---|---|\n| matmul | 1.2e-4 | 3 |",
        ] {
            assert!(text.contains(part), "'{part}' is not in\n{text}");
        }
        assert!(!text.contains("beside PyTorch"));
        let both = [3, 10].map(|item| {
            let mut findings = Findings::new(item, Provenance::example());
            let cells =
                ["network", "precision", "batch", "ms a step"].into_iter().zip([json!("a"), json!("b"), json!(8)]);
            let cells: Vec<_> = cells.chain([("ms a step", json!(10 * item))]).collect();
            findings.row(comparison::STEPS, &cells);
            findings
        });
        let text = page(&[("example-2026-11-21".into(), both.to_vec())]);
        assert!(text.contains("### Kiln beside PyTorch") && text.contains("| 100 | 30 | 3.333 |"), "{text}");
        findings.provenance = Provenance { device: "flex".into(), gpu: None, ..findings.provenance };
        assert_eq!(page(&[("flex".into(), vec![findings])]), page(&[]));
        assert!(page(&[]).contains("Nothing has been measured on a GPU yet"));
    }
}
