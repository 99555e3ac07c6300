//! Files of results, a line for each, to which a command adds until it ends or is killed.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The lines of a file, none if there is no such file; `parse` returns `None` for a line that is not as `expected`. Lines begin with a
/// number. A last line without an end, of a command that was killed, is removed.
pub(crate) fn read<T>(path: &Path, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    let name = || path.display().to_string();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error).with_context(name),
    };
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let parse =
        |(at, line)| parse(line).with_context(|| format!("{}:{}: '{line}', expected {expected}", name(), at + 1));
    let lines: Vec<T> = text[..whole].lines().enumerate().map(parse).collect::<Result<_>>()?;
    let rest = &text[whole..];
    if !rest.is_empty() {
        ensure!(
            rest.starts_with(|first: char| first.is_ascii_digit()),
            "{}: '{rest}', expected {expected}",
            path.display()
        );
        let cut = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(whole as u64));
        cut.with_context(name)?;
    }
    Ok(lines)
}

/// Adds a line to a file.
pub(crate) fn append(path: &Path, line: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.with_context(|| path.display().to_string())
}
