//! Files of records, read one record at a time.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::limit::{LONGEST, Limited, TOO_LONG};
use super::record::{Columns, Record};
use crate::error::Error;
use crate::files::{FoundFile, fingerprint, list};
use crate::printable::printable;

/// The format of a file of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// A JSON object on each line.
    Lines,
    /// A table whose first row names its columns.
    Csv,
}

impl Format {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" => Some(Self::Lines),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }
}

/// Whether `path` has records: a file ending in .jsonl, .ndjson or .csv, or a directory with such files.
pub fn has_records(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    if path.is_file() {
        return Format::of(path).is_some();
    }
    let files = list(path).unwrap_or_default();
    files.iter().any(|file| file.is_file() && Format::of(file).is_some())
}

/// Files of records of one format.
pub(super) struct RecordFiles {
    files: Vec<FoundFile>,
    format: Format,
}

impl RecordFiles {
    /// `path`, or the files of records in it when it is a directory, in the order of their names.
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::NoDataSet`] for other files, for files of both formats, and for a directory that has text as well.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let expected = "expected files ending in .jsonl or .ndjson, or files ending in .csv";
        let mut paths = if path.is_dir() { list(path)? } else { vec![path.to_owned()] };
        let is_text = |file: &PathBuf| file.is_file() && file.extension().is_some_and(|extension| extension == "txt");
        let text = paths.iter().find(|file| is_text(file)).cloned();
        paths.retain(|file| path == file || file.is_file() && Format::of(file).is_some());
        let Some(format) = paths.first().and_then(|first| Format::of(first)) else {
            return Err(Error::no_data_set(path, expected));
        };
        if let Some(text) = text.filter(|_| path.is_dir()) {
            let reason = format!(
                "'{}' is text and '{}' has records, expected files of one of them",
                name(&text),
                name(&paths[0])
            );
            return Err(Error::no_data_set(path, reason));
        }
        if let Some(other) = paths.iter().find(|file| Format::of(file) != Some(format)) {
            let reason = format!("'{}' and '{}' are of different formats, {expected}", name(&paths[0]), name(other));
            return Err(Error::no_data_set(path, reason));
        }
        Ok(Self { files: paths.into_iter().map(FoundFile::new).collect::<Result<_, _>>()?, format })
    }

    /// A number that changes when a file is replaced by another or written to.
    pub(super) fn fingerprint(&self) -> u128 {
        fingerprint(&self.files)
    }

    /// Passes each record to `sink`, which may return the reason why it cannot be used.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Record`] for a record that is damaged, that takes more than 64 MiB, or that `sink` refuses; the error of `sink`.
    pub(super) fn each(&self, mut sink: impl FnMut(Record) -> Result<Result<(), String>, Error>) -> Result<(), Error> {
        for FoundFile { path, .. } in &self.files {
            let file = File::open(path).map_err(|e| Error::read(path, e))?;
            let mut use_record = |line, record: Result<Record, String>| {
                let used = match record {
                    Ok(record) => sink(record)?,
                    Err(reason) => Err(reason),
                };
                used.map_err(|reason| refused(path, line, &reason))
            };
            match self.format {
                Format::Lines => lines(path, file, &mut use_record)?,
                Format::Csv => rows(path, file, &mut use_record)?,
            }
        }
        Ok(())
    }
}

fn name(path: &Path) -> String {
    printable(path.file_name().unwrap_or_default())
}

fn refused(path: &Path, line: u64, reason: &str) -> Error {
    Error::Record { path: path.to_owned(), line, reason: printable(reason) }
}

/// Takes the record that begins in a line, or the reason why it is none.
type UseRecord<'a> = dyn FnMut(u64, Result<Record, String>) -> Result<(), Error> + 'a;

/// The records of a file with one on each line.
fn lines(path: &Path, file: File, use_record: &mut UseRecord<'_>) -> Result<(), Error> {
    each_line(path, file, |number, line| use_record(number, Record::of_json(line)).map(|()| true))
}

/// Passes the lines of a file and their numbers to `sink` until it returns false. Lines of white space, a byte order mark and what stands around a
/// line are left out.
///
/// # Errors
/// [`Error::Read`]; [`Error::Record`] for a line that is no UTF-8 or takes more than 64 MiB; the error of `sink`.
pub fn each_line<E: From<Error>>(
    path: &Path,
    file: File,
    mut sink: impl FnMut(u64, &str) -> Result<bool, E>,
) -> Result<(), E> {
    let (mut reader, mut bytes, mut number) = (BufReader::with_capacity(1 << 18, file), vec![], 0);
    loop {
        bytes.clear();
        number += 1;
        let most = LONGEST as u64 + 1;
        if reader.by_ref().take(most).read_until(b'\n', &mut bytes).map_err(|e| Error::read(path, e))? == 0 {
            return Ok(());
        }
        if bytes.len() > LONGEST {
            return Err(refused(path, number, TOO_LONG).into());
        }
        let line = match std::str::from_utf8(&bytes) {
            Ok(line) => line.trim_start_matches('\u{feff}').trim(),
            Err(error) => return Err(refused(path, number, &format!("not UTF-8: {error}")).into()),
        };
        if !line.is_empty() && !sink(number, line)? {
            return Ok(());
        }
    }
}

/// The records of a table.
fn rows(path: &Path, file: File, use_record: &mut UseRecord<'_>) -> Result<(), Error> {
    let (file, since) = Limited::new(file);
    let mut reader = csv::ReaderBuilder::new().buffer_capacity(1 << 18).from_reader(file);
    let at = |error: csv::Error, line: u64| {
        let line = error.position().map_or(line, csv::Position::line);
        match error.into_kind() {
            csv::ErrorKind::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => Error::read(path, error),
            csv::ErrorKind::Io(error) => refused(path, line, &error.to_string()),
            csv::ErrorKind::Utf8 { err, .. } => refused(path, line, &format!("not UTF-8: {err}")),
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => refused(
                path,
                line,
                &format!("the number of fields is {len}, expected {expected_len} as in the first row"),
            ),
            other => refused(path, line, &format!("{other:?}")),
        }
    };
    let columns = reader.headers().map_err(|error| at(error, 1))?.iter();
    let columns = Columns::named(columns).map_err(|reason| refused(path, 1, &reason))?;
    let mut row = csv::StringRecord::new();
    loop {
        since.set(0);
        let line = reader.position().line();
        if !reader.read_record(&mut row).map_err(|error| at(error, line))? {
            return Ok(());
        }
        let line = row.position().map_or(line, csv::Position::line);
        use_record(line, Ok(columns.record(|column| row.get(column))))?;
    }
}
