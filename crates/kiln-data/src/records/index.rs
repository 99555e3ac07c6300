//! The lengths of records and the ranges of their learned tokens, in memory and in a file.

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::encoder::EncodedRecord;
use crate::error::Error;
use crate::files::{partial, publish};

const MAGIC: [u8; 8] = *b"KilnRecs";
const VERSION: u64 = 1;

/// The places of records among their tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordIndex {
    lengths: Vec<u32>,
    /// The number of ranges of each record.
    counts: Vec<u32>,
    ranges: Vec<Range<u32>>,
    /// Records without a token that is learned.
    pub(super) left_out: u64,
    /// Answers that are not learned, because the chat template changes them.
    pub(super) changed: u64,
}

impl RecordIndex {
    /// Adds a record, unless none of its tokens is learned: then it returns `false`.
    pub(super) fn push(&mut self, record: &EncodedRecord) -> bool {
        self.changed += record.changed as u64;
        let has_any = record.learned.last().is_some_and(|range| range.end > 1);
        let Some(length) = u32::try_from(record.ids.len()).ok().filter(|_| has_any) else {
            self.left_out += 1;
            return false;
        };
        self.lengths.push(length);
        self.counts.push(record.learned.len() as u32);
        self.ranges.extend(record.learned.iter().cloned());
        true
    }

    /// Tokens of each record.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.lengths.iter().map(|length| *length as usize)
    }

    /// The ranges of learned tokens of each record.
    pub(super) fn learned(&self) -> impl Iterator<Item = Vec<Range<u32>>> + '_ {
        let mut rest = self.ranges.as_slice();
        self.counts.iter().map(move |count| {
            let (own, others) = rest.split_at(*count as usize);
            rest = others;
            own.to_vec()
        })
    }

    /// Writes the index: numbers in little-endian order, and XXH3 of all bytes before at the end. The file gets its name when it is complete.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(super) fn save(&self, path: &Path) -> Result<(), Error> {
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.lengths.len() as u64, self.ranges.len() as u64, self.left_out, self.changed] {
            bytes.extend(number.to_le_bytes());
        }
        let ranges = self.ranges.iter().flat_map(|range| [range.start, range.end]);
        let numbers = self.lengths.iter().chain(&self.counts).copied().chain(ranges);
        bytes.extend(numbers.flat_map(u32::to_le_bytes));
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        let mut file = partial(path)?;
        file.write_all(&bytes).map_err(|reason| Error::write(path, reason))?;
        publish(file, path)
    }

    /// The index in a file; `None` if it is missing or damaged.
    pub(super) fn load(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let (said, checksum) = bytes.split_last_chunk::<8>()?;
        if xxh3_64(said) != u64::from_le_bytes(*checksum) {
            return None;
        }
        let (header, body) = said.split_at_checked(48)?;
        let (magic, header) = header.split_first_chunk::<8>()?;
        let number = |at: usize| Some(u64::from_le_bytes(header.get(8 * at..8 * at + 8)?.try_into().ok()?));
        let [version, records, ranges] = [number(0)?, number(1)?, number(2)?];
        let [left_out, changed] = [number(3)?, number(4)?];
        let numbers: Vec<u32> = body
            .chunks_exact(4)
            .map(|number| u32::from_le_bytes([number[0], number[1], number[2], number[3]]))
            .collect();
        let expected = records.checked_add(ranges)?.checked_mul(8)?;
        if *magic != MAGIC || version != VERSION || body.len() as u64 != expected {
            return None;
        }
        let (lengths, rest) = numbers.split_at(records as usize);
        let (counts, rest) = rest.split_at(records as usize);
        if counts.iter().map(|count| u64::from(*count)).sum::<u64>() != ranges {
            return None;
        }
        let ranges = rest.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
        Some(Self { lengths: lengths.to_vec(), counts: counts.to_vec(), ranges, left_out, changed })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tempfile::tempdir;

    use super::*;

    fn records() -> impl Strategy<Value = Vec<EncodedRecord>> {
        let ranges = prop::collection::vec((0u32..3, 1u32..4), 0..4);
        let record = (ranges, 0usize..4).prop_map(|(steps, more)| {
            let (mut learned, mut end) = (vec![], 0);
            for (gap, length) in steps {
                learned.push(end + gap..end + gap + length);
                end += gap + length;
            }
            EncodedRecord { ids: vec![7; end as usize + more], learned, changed: more }
        });
        prop::collection::vec(record, 0..9)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))] // each flushes a file to the disk
        #[test]
        fn an_index_is_read_as_it_was_written_and_not_when_it_is_damaged(
            records in records(), damage: prop::sample::Index, bit in 0u8..8,
        ) {
            let (folder, mut index) = (tempdir().unwrap(), RecordIndex::default());
            let kept: Vec<&EncodedRecord> = records.iter().filter(|record| index.push(record)).collect();
            prop_assert!(index.learned().eq(kept.iter().map(|record| record.learned.clone())));
            prop_assert!(index.lengths().eq(kept.iter().map(|record| record.ids.len())));
            prop_assert_eq!(index.left_out as usize, records.len() - kept.len());
            let path = folder.path().join("index");
            index.save(&path).unwrap();
            prop_assert_eq!(RecordIndex::load(&path).unwrap(), index);
            let mut bytes = std::fs::read(&path).unwrap();
            let at = damage.index(bytes.len());
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).unwrap();
            prop_assert!(RecordIndex::load(&path).is_none());
            std::fs::write(&path, &bytes[..at]).unwrap();
            prop_assert!(RecordIndex::load(&path).is_none());
        }
    }
}
