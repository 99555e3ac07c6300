//! Results on stdout.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

/// Prints `results` as one line of JSON.
///
/// # Errors
/// When stdout is closed.
pub fn print_json(results: &impl Serialize) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(results)?)?;
    Ok(())
}
