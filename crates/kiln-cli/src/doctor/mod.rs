//! `doctor`: what a text about missing memory says, or how a run ended, and what to try.

mod finding;
mod read;
mod run;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result};
use kiln_data::printable;

use crate::cli::Doctor;
use finding::Finding;

/// The end of a long log has its error. More is not read.
const MOST: u64 = 8 << 20;

/// Prints what is found in a run's directory, a file, or stdin.
///
/// # Errors
/// If the path cannot be read, and for a directory that is no run.
pub(crate) fn run(command: &Doctor) -> Result<()> {
    let findings = match command.what.as_deref() {
        Some(path) if path.is_dir() => vec![run::finding(path)?],
        Some(path) if path != Path::new("-") => read::findings(&end_of(path)?),
        _ => read::findings(&text(std::io::stdin().lock())?),
    };
    let findings = if findings.is_empty() { vec![Finding::nothing()] } else { findings };
    let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
    writeln!(std::io::stdout().lock(), "{}", texts.join("\n"))?;
    Ok(())
}

fn end_of(path: &Path) -> Result<String> {
    let about = || format!("cannot read '{}'", printable(&path));
    let mut file = File::open(path).with_context(about)?;
    let length = file.metadata().with_context(about)?.len();
    if length > MOST {
        file.seek(SeekFrom::Start(length - MOST)).with_context(about)?;
    }
    text(file).with_context(about)
}

/// At most [`MOST`] bytes as text. Other bytes than UTF-8 are of no interest.
fn text(from: impl Read) -> Result<String> {
    let mut bytes = vec![];
    from.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
