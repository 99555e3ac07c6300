//! `metrics.jsonl`: a JSON object for each step and each evaluation.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::printable;
use serde_json::Value;

/// The name of the file in the directory of a run.
pub(super) const METRICS: &str = "metrics.jsonl";

/// The lines of the run in `directory`, without an incomplete last one.
pub(crate) fn read(directory: &Path) -> Result<Vec<Value>> {
    Ok(texts(directory)?.into_iter().map(|(_, value)| value).collect())
}

/// The lines as text and parsed.
pub(super) fn texts(directory: &Path) -> Result<Vec<(String, Value)>> {
    let path = directory.join(METRICS);
    if !path.exists() {
        return Ok(vec![]);
    }
    let bytes = fs::read(&path).with_context(|| format!("cannot read '{}'", printable(&path)))?;
    let text = String::from_utf8_lossy(&bytes);
    let parsed = |line: &str| Some((line.to_owned(), serde_json::from_str(line).ok()?));
    Ok(text.lines().filter_map(parsed).collect())
}

/// The step that a line belongs to.
pub(super) fn step(line: &Value) -> Option<u64> {
    line["step"].as_u64()
}
