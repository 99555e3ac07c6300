//! Text files read as one text, block by block, and tokenized in bounded memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::files::{FoundFile, fingerprint, list};

use super::token_file::{TokenFile, TokenFileWriter};
use super::tokenizer::Tokenizer;

/// The longest text without a place to cut it, in bytes.
const LONGEST: usize = 1 << 26;
/// The extensions of files of records, of which only a part is text.
const RECORDS: [&str; 6] = ["csv", "json", "jsonl", "ndjson", "parquet", "tsv"];

/// Writes the ids of the text in `files`, one file after the other, into a token file at `out`. The ids are those of the
/// whole text encoded at once, but only a few hundred KiB of it are in memory at a time. A tokenizer whose words are unknown
/// reads all of it at once, at most 64 MiB.
///
/// # Errors
/// [`Error::Read`] and [`Error::Write`]; [`Error::Format`] for a file that is not UTF-8, becomes shorter while it is
/// read, or has 64 MiB without white space after another character, where the tokenizer can cut it;
/// [`Error::Tokenizer`].
pub fn tokenize_files<P: AsRef<Path>>(
    files: impl IntoIterator<Item = P>,
    tokenizer: &Tokenizer,
    out: impl AsRef<Path>,
) -> Result<TokenFile, Error> {
    let files = TextFiles::new(files.into_iter().map(|path| path.as_ref().to_owned()).collect())?;
    files.write(0..files.bytes(), tokenizer, out.as_ref())
}

/// Several files as one text.
pub(crate) struct TextFiles {
    files: Vec<FoundFile>,
    /// Bytes that are read at a time, at least the 4 of a character.
    block: usize,
}

impl TextFiles {
    /// `path`, or the `.txt` files in it when it is a directory, in the order of their names. A file of records is refused: its
    /// quotes, braces and keys would be taken for text.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        if !path.is_dir() {
            let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            if path.is_file() && RECORDS.contains(&extension.as_str()) {
                let reason = "it has records, expected plain text: a file, or a directory of files ending in .txt; records are read \
                              from files ending in .jsonl, .ndjson and .csv"
                    .into();
                return Err(Error::NoDataSet { path: path.to_owned(), reason });
            }
            return Self::new(vec![path.to_owned()]);
        }
        let mut files = list(path)?;
        files.retain(|file| file.is_file() && file.extension().is_some_and(|extension| extension == "txt"));
        if files.is_empty() {
            return Err(Error::NoDataSet { path: path.to_owned(), reason: "expected files ending in .txt".into() });
        }
        Self::new(files)
    }

    fn new(paths: Vec<PathBuf>) -> Result<Self, Error> {
        Ok(Self { files: paths.into_iter().map(FoundFile::new).collect::<Result<_, Error>>()?, block: 1 << 18 })
    }

    /// Length of the text.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// A number that changes when a file is replaced by another or written to.
    pub(crate) fn fingerprint(&self) -> u128 {
        fingerprint(&self.files)
    }

    /// `at`, or the first byte of the character around it.
    pub(crate) fn character_boundary(&self, at: u64) -> Result<u64, Error> {
        let mut start = 0;
        for FoundFile { path, bytes, .. } in &self.files {
            if at < start + bytes {
                let inside = at - start;
                // A character is at most four bytes long, all of which but the first are 10xxxxxx.
                let first = inside.saturating_sub(3);
                let mut around = vec![];
                let mut file = File::open(path).map_err(|e| Error::read(path, e))?;
                let read = file.seek(SeekFrom::Start(first));
                let read = read.and_then(|_| file.take(inside - first + 1).read_to_end(&mut around));
                read.map_err(|e| Error::read(path, e))?;
                let begins = around.iter().rposition(|byte| byte & 0b1100_0000 != 0b1000_0000);
                return Ok(begins.map_or(at, |begins| start + first + begins as u64));
            }
            start += bytes;
        }
        Ok(start)
    }

    /// Passes the ids of the bytes `range` of the text to `sink`, in pieces. They are those of that text encoded at once.
    pub(crate) fn encode(
        &self,
        range: Range<u64>,
        tokenizer: &Tokenizer,
        mut sink: impl FnMut(&[u32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut text, mut searched) = (String::new(), 0);
        self.characters(range, |path, more| {
            text.push_str(more);
            // Before the last character of the text so far there is no place.
            let cut = tokenizer.last_cut(&text[searched..]).map(|cut| searched + cut);
            searched = text.char_indices().next_back().map_or(0, |(last, _)| last);
            let Some(cut) = cut else {
                return match text.len() <= LONGEST {
                    true => Ok(()),
                    false if !tokenizer.can_cut() => Err(Error::format(
                        path,
                        "more than 64 MiB, which a tokenizer whose words are unknown reads at once: expected a shorter text",
                    )),
                    false => Err(Error::format(path, "64 MiB of text without white space, expected words or lines")),
                };
            };
            sink(&tokenizer.encode(&text[..cut])?)?;
            text.drain(..cut);
            searched -= cut.min(searched);
            Ok(())
        })?;
        sink(&tokenizer.encode(&text)?)
    }

    /// Passes the bytes `range` of the text to `sink`, in pieces of whole characters, with the path of their file.
    fn characters(
        &self,
        range: Range<u64>,
        mut sink: impl FnMut(&Path, &str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut start = 0;
        for FoundFile { path, bytes, .. } in &self.files {
            let part = range.start.clamp(start, start + bytes) - start..range.end.clamp(start, start + bytes) - start;
            start += bytes;
            let mut file = File::open(path).map_err(|e| Error::read(path, e))?;
            file.seek(SeekFrom::Start(part.start)).map_err(|e| Error::read(path, e))?;
            let (mut at, mut block) = (part.start, Vec::with_capacity(self.block));
            while at < part.end {
                let want = (part.end - at).min((self.block - block.len()) as u64);
                let read = file.by_ref().take(want).read_to_end(&mut block).map_err(|e| Error::read(path, e))?;
                if read as u64 != want {
                    return Err(Error::format(path, "it became shorter while it was read"));
                }
                at += want;
                let error = std::str::from_utf8(&block).err();
                let whole = error.map_or(block.len(), |e| e.valid_up_to());
                // A block may end within a character.
                let cut = at < part.end && error.is_some_and(|e| e.error_len().is_none());
                if whole < block.len() && !cut {
                    let index = at - (block.len() - whole) as u64;
                    return Err(Error::format(path, format!("not UTF-8: invalid utf-8 sequence from index {index}")));
                }
                let rest = block.split_off(whole);
                let text = String::from_utf8(std::mem::replace(&mut block, rest));
                sink(path, &text.map_err(|e| Error::format(path, e.to_string()))?)?;
            }
        }
        Ok(())
    }

    /// Writes the ids of the bytes `range` of the text into a token file at `out`.
    pub(crate) fn write(&self, range: Range<u64>, tokenizer: &Tokenizer, out: &Path) -> Result<TokenFile, Error> {
        let mut writer = TokenFileWriter::create(out, tokenizer.vocab())?;
        self.encode(range, tokenizer, |ids| writer.write(ids))?;
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use tempfile::tempdir;

    use super::*;

    static TOKENIZERS: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
        let bpe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/bpe");
        [Tokenizer::Bytes, Tokenizer::bpe(bpe).unwrap()]
    });

    proptest! {
        #[test]
        fn a_text_has_the_same_ids_in_files_and_blocks_of_any_size(
            texts in prop::collection::vec("([a-z]{0,6}|'(ll|s)|é|日本。|🐋|7+|[ \n\u{3000}]{1,3}|\\PC)*", 1..4),
            block in 4usize..70, from in 0.0..1.0, to in 0.0..1.0,
        ) {
            let folder = tempdir().unwrap();
            let path = |number: usize| folder.path().join(number.to_string());
            texts.iter().enumerate().for_each(|(number, text)| fs::write(path(number), text).unwrap());
            let text = texts.concat();
            let files = TextFiles { block, ..TextFiles::new((0..texts.len()).map(path).collect()).unwrap() };
            prop_assert_eq!(files.bytes() as usize, text.len());
            let [from, to] = [from, to].map(|part: f64| (part * text.len() as f64) as usize);
            let cuts = [from, to].map(|at| files.character_boundary(at as u64).unwrap() as usize);
            prop_assert_eq!(cuts, [from, to].map(|at| text.floor_char_boundary(at)));
            let (from, to) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
            for tokenizer in TOKENIZERS.iter() {
                for range in [0..text.len(), from..to] {
                    let (mut ids, bytes) = (vec![], range.start as u64..range.end as u64);
                    files.encode(bytes, tokenizer, |more| {
                        ids.extend_from_slice(more);
                        Ok(())
                    }).unwrap();
                    prop_assert_eq!(ids, tokenizer.encode(&text[range]).unwrap());
                }
            }
        }
    }
}
