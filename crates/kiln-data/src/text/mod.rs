//! Opens a text, tokenizes it, and divides it into a part for training and a part for testing.

mod text_batch;
mod text_files;
mod text_tokens;
mod token_file;
mod token_form;
mod tokenizer;

use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

use crate::error::Error;
use crate::files::TrainTest;

use text_files::TextFiles;

pub(crate) use token_file::Tokens;

pub use text_batch::TextBatch;
pub use text_files::tokenize_files;
pub use text_tokens::TextTokens;
pub use token_file::{TokenFile, TokenFileWriter};
pub use tokenizer::{Bpe, Tokenizer, TokenizerKind};

/// Reads `path` (a text file, or a directory whose `.txt` files are read in the order of their names). The last part of
/// the text, a fraction `held_out` in (0, 1), is for testing. The tokens are kept in memory.
///
/// # Errors
/// [`Error::Read`], [`Error::NoDataSet`] for a directory without text and a file of records (.csv, .json, .jsonl, .ndjson, .parquet,
/// .tsv), [`Error::Format`] for a file
/// that is not UTF-8, [`Error::Tokenizer`], [`Error::InvalidSetting`] for a fraction or a length that leaves
/// too little text in either part.
pub fn open_text(
    path: impl AsRef<Path>,
    tokenizer: &Tokenizer,
    length: usize,
    held_out: f64,
) -> Result<TrainTest<TextTokens>, Error> {
    let files = TextFiles::open(path.as_ref())?;
    let [train, test] = parts(&files, held_out)?;
    let part = |range| {
        let mut tokens = vec![];
        let keep = |ids: &[u32]| {
            tokens.extend_from_slice(ids);
            Ok(())
        };
        files.encode(range, tokenizer, keep).map(|()| tokens)
    };
    let (train, test) = (part(train)?, part(test)?);
    Ok(TrainTest { train: TextTokens::new(train, length)?, test: TextTokens::new(test, length)? })
}

/// [`open_text`] with the tokens in two files in `cache`, a directory that is created if it does not exist. The text is
/// tokenized once, and may be larger than memory. The files may be deleted at any time, but not changed (see [`TokenFile`]).
///
/// Their names depend on the text's paths, sizes and modification times, the tokenizer's files, and `held_out`. A change of
/// the text that keeps size and modification time is not detected.
///
/// # Errors
/// As [`open_text`]; [`Error::Write`] when the cache cannot be written; [`Error::Format`] when the text changes while it is read.
pub fn open_text_cached(
    path: impl AsRef<Path>,
    tokenizer: &Tokenizer,
    length: usize,
    held_out: f64,
    cache: impl AsRef<Path>,
) -> Result<TrainTest<TextTokens>, Error> {
    let (path, cache) = (path.as_ref(), cache.as_ref());
    let files = TextFiles::open(path)?;
    let [train, test] = parts(&files, held_out)?;
    let mut key = Xxh3Default::new();
    key.update(&files.fingerprint().to_le_bytes());
    key.update(&tokenizer.fingerprint().to_le_bytes());
    key.update(&held_out.to_bits().to_le_bytes());
    let key = key.digest128();
    let part = |name: &str, range| {
        let file = cache.join(format!("{key:032x}-{name}.tokens"));
        // A missing or damaged file is written again.
        if let Some(tokens) = TokenFile::open(&file).ok().filter(|tokens| tokens.vocab() == tokenizer.vocab()) {
            return Ok(tokens);
        }
        std::fs::create_dir_all(cache).map_err(|reason| Error::write(cache, reason))?;
        let tokens = files.write(range, tokenizer, &file)?;
        if TextFiles::open(path)?.fingerprint() != files.fingerprint() {
            let _ = std::fs::remove_file(&file);
            return Err(Error::format(path, "it changed while it was read"));
        }
        Ok(tokens)
    };
    let (train, test) = (part("train", train)?, part("test", test)?);
    Ok(TrainTest { train: TextTokens::from_file(train, length)?, test: TextTokens::from_file(test, length)? })
}

/// The bytes to train on and to test on, divided between two characters.
fn parts(files: &TextFiles, held_out: f64) -> Result<[Range<u64>; 2], Error> {
    if !(held_out > 0.0 && held_out < 1.0) {
        return Err(Error::setting("held out", held_out.to_string(), "a fraction between 0 and 1"));
    }
    let cut = files.character_boundary((files.bytes() as f64 * (1.0 - held_out)) as u64)?;
    Ok([0..cut, cut..files.bytes()])
}
