//! The header of a token file.

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"KilnToks";
const VERSION: u32 = 1;
/// Bytes of a header.
pub(super) const HEADER: usize = 48;

/// The fields of a header, all numbers in little-endian order:
///
/// | Bytes | |
/// |---|---|
/// | 0..8 | `KilnToks` |
/// | 8..12 | version, 1 |
/// | 12..16 | bytes per id, 2 or 4 |
/// | 16..24 | number of ids |
/// | 24..32 | size of the vocabulary |
/// | 32..40 | XXH3 of the ids' bytes |
/// | 40..48 | XXH3 of bytes 0..40 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) count: u64,
    pub(super) vocab: u64,
    pub(super) checksum: u64,
}

impl Header {
    /// Ids of 2 bytes if the vocabulary fits, otherwise of 4.
    pub(super) fn new(vocab: u64) -> Self {
        Self { width: if vocab <= 1 << 16 { 2 } else { 4 }, count: 0, vocab, checksum: 0 }
    }

    pub(super) fn bytes(&self) -> [u8; HEADER] {
        let (version, width) = (VERSION.to_le_bytes(), self.width.to_le_bytes());
        let [count, vocab, checksum] = [self.count, self.vocab, self.checksum].map(u64::to_le_bytes);
        let said = [&MAGIC[..], &version, &width, &count, &vocab, &checksum].concat();
        let mut bytes = [0; HEADER];
        bytes[..HEADER - 8].copy_from_slice(&said);
        bytes[HEADER - 8..].copy_from_slice(&xxh3_64(&said).to_le_bytes());
        bytes
    }

    /// The header of a file of `bytes`, or the reason why it is not valid.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Err(format!("{} bytes, expected a header of {HEADER}", bytes.len()));
        };
        if header[..8] != MAGIC {
            return Err("it does not begin as a token file (a file of ids alone is opened as such)".into());
        }
        let half = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let number = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        match half(8) {
            VERSION => {}
            other if other.swap_bytes() == VERSION => {
                return Err("its numbers are big-endian, expected little-endian".into());
            }
            other => return Err(format!("version {other}, expected {VERSION}")),
        }
        if number(HEADER - 8) != xxh3_64(&header[..HEADER - 8]) {
            return Err("the header's checksum is wrong".into());
        }
        let header = Self { width: half(12), count: number(16), vocab: number(24), checksum: number(32) };
        if !matches!(header.width, 2 | 4) {
            return Err(format!("{} bytes per id, expected 2 or 4", header.width));
        }
        let (there, said) = ((bytes.len() - HEADER) as u64, header.count.checked_mul(header.width.into()));
        if said != Some(there) {
            return Err(format!("{there} bytes of ids, expected {} ids of {} bytes", header.count, header.width));
        }
        Ok(header)
    }
}
