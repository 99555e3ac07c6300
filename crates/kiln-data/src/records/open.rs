//! Opens files of records as documents, whose tokens are in memory or in a cache.

use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

use super::encoder::RecordEncoder;
use super::index::RecordIndex;
use super::record_files::RecordFiles;
use crate::documents::Documents;
use crate::error::Error;
use crate::text::{TokenFile, TokenFileWriter};

/// Records as documents that know which of their tokens are learned.
#[derive(Clone, Debug)]
pub struct Records {
    /// The records, in the order of their files and lines.
    pub documents: Documents,
    /// The number of records that were left out, because none of their tokens is learned.
    pub left_out: usize,
    /// The number of answers that are not learned, because the chat template writes them in another way when other messages follow.
    pub changed: usize,
}

impl Records {
    /// Reads `path`: a file ending in .jsonl, .ndjson or .csv, or a directory of files of one of these formats, in the order of their names. Each
    /// line of JSON is an object with `text`, with `prompt` and `completion`, or with `messages`, a list of `{"role": .., "content": ..}`; the
    /// first row of a table names columns `text`, or `prompt` and `completion`. Other fields are ignored. The tokens are kept in memory.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::NoDataSet`] for other files and for files without a token that is learned, [`Error::Record`] with file and line
    /// for a record that cannot be used.
    pub fn open(path: impl AsRef<Path>, encoder: &RecordEncoder<'_>) -> Result<Self, Error> {
        let (path, mut tokens) = (path.as_ref(), vec![]);
        let index = encode(&RecordFiles::open(path)?, encoder, |ids| {
            tokens.extend_from_slice(ids);
            Ok(())
        })?;
        check(path, &index)?;
        Self::over(Documents::in_memory(tokens, index.lengths())?, &index)
    }

    /// [`open`](Self::open) with the tokens in a file in `cache`, a directory that is created if it does not exist, and lengths and learned ranges
    /// in another one. Records become tokens once, and may be larger than memory. The files may be deleted at any time, but not changed.
    ///
    /// Their names depend on the records' paths, sizes and modification times, the tokenizer, the chat template and the end of a text. A change of
    /// the records that keeps size and modification time is not detected.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Write`] when the cache cannot be written; [`Error::Format`] when the records change while they are read.
    pub fn open_cached(
        path: impl AsRef<Path>,
        encoder: &RecordEncoder<'_>,
        cache: impl AsRef<Path>,
    ) -> Result<Self, Error> {
        let (path, cache) = (path.as_ref(), cache.as_ref());
        let files = RecordFiles::open(path)?;
        let mut key = Xxh3Default::new();
        key.update(&files.fingerprint().to_le_bytes());
        key.update(&encoder.fingerprint().to_le_bytes());
        let key = key.digest128();
        let [tokens_at, index_at] = ["tokens", "records"].map(|end| cache.join(format!("{key:032x}.{end}")));
        // Missing or damaged files are written again.
        if let (Ok(tokens), Some(index)) = (TokenFile::open(&tokens_at), RecordIndex::load(&index_at))
            && tokens.vocab() == encoder.vocab()
            && let Ok(documents) = Documents::from_file(tokens, index.lengths())
        {
            return Self::over(documents, &index);
        }
        std::fs::create_dir_all(cache).map_err(|reason| Error::write(cache, reason))?;
        let mut writer = TokenFileWriter::create(&tokens_at, encoder.vocab())?;
        let index = encode(&files, encoder, |ids| writer.write(ids))?;
        check(path, &index)?;
        if RecordFiles::open(path)?.fingerprint() != files.fingerprint() {
            return Err(Error::format(path, "it changed while it was read"));
        }
        let tokens = writer.finish()?;
        index.save(&index_at)?;
        Self::over(Documents::from_file(tokens, index.lengths())?, &index)
    }

    fn over(documents: Documents, index: &RecordIndex) -> Result<Self, Error> {
        Ok(Self {
            documents: documents.with_learned(index.learned())?,
            left_out: index.left_out as usize,
            changed: index.changed as usize,
        })
    }

    /// Keeps the first `length` tokens of each record, at least 2, and leaves out records in which no token is learned then.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a length below 2, and when no record is left.
    pub fn cut_to(self, length: u32) -> Result<Self, Error> {
        let (documents, left_out) = self.documents.cut_to(length)?.without_unlearned()?;
        Ok(Self { documents, left_out: self.left_out + left_out, ..self })
    }
}

/// Passes the tokens of all records to `sink`.
fn encode(
    files: &RecordFiles,
    encoder: &RecordEncoder<'_>,
    mut sink: impl FnMut(&[u32]) -> Result<(), Error>,
) -> Result<RecordIndex, Error> {
    let mut index = RecordIndex::default();
    files.each(|record| {
        let encoded = match encoder.encode(&record) {
            Ok(encoded) => encoded,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if index.push(&encoded) {
            sink(&encoded.ids)?;
        }
        Ok(Ok(()))
    })?;
    Ok(index)
}

/// Refuses files without a record to learn from.
fn check(path: &Path, index: &RecordIndex) -> Result<(), Error> {
    match index.lengths().next() {
        Some(_) => Ok(()),
        None => Err(Error::no_data_set(path, "expected records with a token to learn after the first")),
    }
}
