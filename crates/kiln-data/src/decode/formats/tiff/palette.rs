//! The palette of a TIFF, and a reader that hides it from the decoder.

use std::io::{self, Read, Seek, SeekFrom};

/// Colours of the indices of a TIFF, from its tag ColorMap (TIFF 6.0, section 5).
pub(super) type Palette = Vec<[u8; 3]>;

/// A TIFF whose photometric interpretation, at `byte` of the file, is read as gray: the decoder does not support palettes
/// and then returns the indices.
#[derive(Debug)]
pub(super) struct Indices<R> {
    file: R,
    at: u64,
    byte: Option<u64>,
}

/// BlackIsZero.
const GRAY: u8 = 1;

impl<R> Indices<R> {
    /// `file` is at its first byte.
    pub(super) fn new(file: R, byte: Option<u64>) -> Self {
        Self { file, at: 0, byte }
    }

    pub(super) fn file(&mut self) -> &mut R {
        &mut self.file
    }
}

impl<R: Read> Read for Indices<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        let here = self.byte.and_then(|byte| byte.checked_sub(self.at)).filter(|here| *here < length as u64);
        if let Some(here) = here {
            buffer[here as usize] = GRAY;
        }
        self.at += length as u64;
        Ok(length)
    }
}

impl<R: Seek> Seek for Indices<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}

/// The high bytes of the reds, greens and blues, as in Pillow.
pub(super) fn palette(map: &[u16]) -> Palette {
    let colours = map.len() / 3;
    let high = |value: u16| (value >> 8) as u8;
    (0..colours).map(|i| [map[i], map[colours + i], map[2 * colours + i]].map(high)).collect()
}
