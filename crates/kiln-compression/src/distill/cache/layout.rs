//! The bytes of a file of stored outputs: a header, then one record of fixed size for each sample.
//!
//! All numbers are little-endian. The header is: `KILNTOPK`, version, classes and K as u32, samples as u64, the length of the source's
//! name as u32, the name, and a CRC-32 of all of this. A record is: K classes (u16, or u32 if there are more than 65,536), K logarithms of
//! probabilities as f16, and a CRC-32 of the sample's number and these bytes, 1 in place of 0. A record of zeros is not written yet.

use std::io::{self, Read};

use half::f16;

use crate::Error;

const MAGIC: &[u8; 8] = b"KILNTOPK";
const VERSION: u32 = 1;
/// Bytes before the source's name.
const FIXED: usize = 8 + 3 * 4 + 8 + 4;
/// Bytes of the longest name.
const LONGEST: usize = 4096;

/// The sizes of a [`TeacherCache`](crate::TeacherCache) and where its outputs come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    samples: usize,
    classes: usize,
    k: usize,
    source: String,
}

impl CacheLayout {
    /// `k` of `classes` outputs for each of `samples` samples. `source` identifies the teacher, its preprocessing and the data set with its
    /// order, for example by names and checksums; a file with another source is refused.
    ///
    /// A sample is what has one row of logits: an image, or a token of a text. The token at position t of sequence s can be sample
    /// `s * context + t`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for no samples, no or more than 2³¹ - 1 classes, `k` outside of 1 to `classes`, a name of more than 4096
    /// bytes, and sizes whose file would exceed 2⁶³ bytes.
    pub fn new(samples: usize, classes: usize, k: usize, source: impl Into<String>) -> Result<Self, Error> {
        let layout = Self { samples, classes, k, source: source.into() };
        let invalid =
            |what, value: usize, expected| Err(Error::InvalidSetting { what, value: value.to_string(), expected });
        match () {
            () if classes == 0 || classes > i32::MAX as usize => {
                invalid("the number of classes", classes, "from 1 to 2147483647")
            }
            () if k == 0 || k > classes => {
                invalid("the number of stored classes", k, "from 1 to the number of classes")
            }
            () if layout.source.len() > LONGEST => {
                invalid("the length of the source's name", layout.source.len(), "at most 4096 bytes")
            }
            () if samples == 0 || layout.size().is_none() => {
                invalid("the number of samples", samples, "at least 1, with a file of less than 2^63 bytes")
            }
            () => Ok(layout),
        }
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Number of classes of the teacher.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Number of stored classes of a sample.
    pub fn k(&self) -> usize {
        self.k
    }

    /// What identifies teacher and data set.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Bytes of a record.
    pub(super) fn record(&self) -> usize {
        self.k * (self.index() + 2) + 4
    }

    /// Bytes of the file; nothing if they exceed 2⁶³.
    pub(super) fn size(&self) -> Option<u64> {
        let records = (self.record() as u64).checked_mul(self.samples as u64)?;
        records.checked_add(self.header_size() as u64).filter(|size| *size < 1 << 63)
    }

    /// Where the record of `sample` is.
    pub(super) fn offset(&self, sample: usize) -> u64 {
        self.header_size() as u64 + sample as u64 * self.record() as u64
    }

    fn header_size(&self) -> usize {
        FIXED + self.source.len() + 4
    }

    /// Bytes of a class.
    fn index(&self) -> usize {
        if self.classes <= 1 << 16 { 2 } else { 4 }
    }

    pub(super) fn header(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.classes as u32, self.k as u32] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend((self.samples as u64).to_le_bytes());
        bytes.extend((self.source.len() as u32).to_le_bytes());
        bytes.extend(self.source.as_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a header; the reason if it is none.
    pub(super) fn read(file: &mut impl Read) -> Result<Self, String> {
        let text = |e: io::Error| e.to_string();
        let mut bytes = vec![0; FIXED];
        file.read_exact(&mut bytes).map_err(text)?;
        if &bytes[..8] != MAGIC {
            return Err("it is no file of a teacher's outputs".into());
        }
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [version, classes, k, low, high, length] = [8, 12, 16, 20, 24, 28].map(number);
        if version != VERSION {
            return Err(format!("its version is {version}, expected {VERSION}"));
        }
        let length = length as usize;
        if length > LONGEST {
            return Err("its header is damaged".into());
        }
        bytes.resize(FIXED + length + 4, 0);
        file.read_exact(&mut bytes[FIXED..]).map_err(text)?;
        let (checked, crc) = bytes.split_at(FIXED + length);
        if crc32fast::hash(checked).to_le_bytes() != crc {
            return Err("its header is damaged".into());
        }
        let source = String::from_utf8(checked[FIXED..].to_vec()).map_err(|e| e.to_string())?;
        let samples = usize::try_from(u64::from(high) << 32 | u64::from(low)).map_err(|e| e.to_string())?;
        Self::new(samples, classes as usize, k as usize, source).map_err(|e| e.to_string())
    }

    /// The record of `sample`. Classes are below [`classes`](Self::classes), and there are K.
    pub(super) fn encode(&self, sample: usize, classes: &[u32], log_probabilities: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.record());
        for class in classes {
            bytes.extend(&class.to_le_bytes()[..self.index()]);
        }
        for value in log_probabilities {
            bytes.extend(f16::from_f32(*value).to_le_bytes());
        }
        bytes.extend(checksum(sample, &bytes).to_le_bytes());
        bytes
    }

    /// What a record says.
    pub(super) fn decode(&self, sample: usize, record: &[u8]) -> Slot {
        if record.iter().all(|byte| *byte == 0) {
            return Slot::Empty;
        }
        let Some((bytes, crc)) = record.split_last_chunk::<4>().filter(|_| record.len() == self.record()) else {
            return Slot::Damaged;
        };
        let (indices, values) = bytes.split_at(self.k * self.index());
        let class = |bytes: &[u8]| bytes.iter().rev().fold(0, |class, byte| class << 8 | u32::from(*byte));
        let classes: Vec<u32> = indices.chunks_exact(self.index()).map(class).collect();
        let known = classes.iter().all(|class| (*class as usize) < self.classes);
        if checksum(sample, bytes).to_le_bytes() != *crc || !known {
            return Slot::Damaged;
        }
        let value = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        Slot::Row { classes, log_probabilities: values.chunks_exact(2).map(value).collect() }
    }
}

/// What is at the place of a record.
#[derive(Debug, PartialEq)]
pub(super) enum Slot {
    /// Nothing was written.
    Empty,
    /// Something else, or an incomplete write.
    Damaged,
    /// The outputs of the sample.
    Row { classes: Vec<u32>, log_probabilities: Vec<f32> },
}

fn checksum(sample: usize, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&(sample as u64).to_le_bytes());
    crc.update(bytes);
    crc.finalize().max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(samples in 1usize..1 << 40, classes in 1usize..1 << 20, source in ".{0,40}") {
            let layout = CacheLayout::new(samples, classes, 1 + classes / 2, source).unwrap();
            prop_assert_eq!(CacheLayout::read(&mut layout.header().as_slice()), Ok(layout));
        }

        #[test]
        fn a_record_is_read_as_it_was_written(
            many in any::<bool>(),
            sample in 0usize..1000,
            values in proptest::collection::vec((0u32..60_000, -30i16..1), 1..20),
        ) {
            let classes = if many { 1 << 17 } else { 1 << 16 };
            let layout = CacheLayout::new(1000, classes, values.len(), "").unwrap();
            let (indices, values): (Vec<u32>, Vec<f32>) =
                values.into_iter().map(|(class, value)| (class + if many { 70_000 } else { 0 }, f32::from(value))).unzip();
            let record = layout.encode(sample, &indices, &values);
            prop_assert_eq!(record.len(), layout.record());
            prop_assert_eq!(layout.decode(sample + 1, &record), Slot::Damaged);
            let row = Slot::Row { classes: indices, log_probabilities: values };
            prop_assert_eq!(layout.decode(sample, &record), row);
            for at in 0..record.len() {
                let mut damaged = record.clone();
                damaged[at] ^= 4;
                prop_assert_eq!(layout.decode(sample, &damaged), Slot::Damaged);
            }
        }
    }

    #[test]
    fn a_row_of_zeros_is_not_an_empty_record() {
        let layout = CacheLayout::new(1, 1, 1, "").unwrap();
        let row = Slot::Row { classes: vec![0], log_probabilities: vec![0.0] };
        assert_eq!(layout.decode(0, &layout.encode(0, &[0], &[0.0])), row);
        assert_eq!(layout.decode(0, &vec![0; layout.record()]), Slot::Empty);
    }

    #[test]
    fn sizes_out_of_range_are_errors() {
        for [samples, classes, k] in [[0, 1, 1], [1, 0, 0], [1, 5, 0], [1, 5, 6], [1, 1 << 31, 1], [usize::MAX, 9, 9]] {
            assert!(matches!(CacheLayout::new(samples, classes, k, ""), Err(Error::InvalidSetting { .. })));
        }
        assert!(CacheLayout::new(1, 1, 1, "x".repeat(4097)).is_err());
    }
}
