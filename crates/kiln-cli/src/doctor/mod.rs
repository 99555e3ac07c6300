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

/// The end of a long log has its error. More is not kept.
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

/// At least the last [`MOST`] bytes as text. It reads to the end, since a program that writes to a closed pipe would be ended. Other bytes than
/// UTF-8 are of no interest.
fn text(mut from: impl Read) -> Result<String> {
    let (mut before, mut last) = (vec![], vec![]);
    loop {
        let mut piece = vec![];
        if from.by_ref().take(MOST).read_to_end(&mut piece)? == 0 {
            break;
        }
        (before, last) = (last, piece);
    }
    before.extend(last);
    Ok(String::from_utf8_lossy(&before).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_text_is_read() {
        let long = std::io::repeat(b'x').take(3 * MOST + 5).chain(&b"Killed"[..]);
        let read = text(long).unwrap();
        assert!(read.ends_with("xKilled") && read.len() as u64 >= MOST && read.len() as u64 <= 2 * MOST);
        assert_eq!(text(&b"a"[..]).unwrap(), "a");
        assert_eq!(text(&b""[..]).unwrap(), "");
    }
}
