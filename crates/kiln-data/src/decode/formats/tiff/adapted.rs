//! A reader that hides from the decoder of TIFFs what it does not support: palettes, bits in reverse order, and further
//! images.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

/// A TIFF whose bytes are changed while they are read. Its photometric interpretation, if that is a palette, is read as
/// gray: the decoder then returns the indices. The first directory is read as the last, because the decoder checks all
/// others too, which are not needed. The bits of each byte are reversed after [`reverse_bits`](Self::reverse_bits).
#[derive(Debug)]
pub(super) struct Adapted<R> {
    file: R,
    at: u64,
    hidden: Hidden,
    reversed: bool,
}

/// The bytes of a file that [`Adapted`] changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Hidden {
    /// The low byte of the photometric interpretation, if that is a palette.
    pub(super) palette: Option<u64>,
    /// The position of the next directory.
    pub(super) next: Range<u64>,
}

/// BlackIsZero.
const GRAY: u8 = 1;

impl<R> Adapted<R> {
    /// `file` is at its first byte.
    pub(super) fn new(file: R, hidden: Hidden) -> Self {
        Self { file, at: 0, hidden, reversed: false }
    }

    pub(super) fn file(&mut self) -> &mut R {
        &mut self.file
    }

    /// Reverses the bits of each byte from here on: the coded pixels of a TIFF whose FillOrder is 2, after its directory
    /// was read, which has the usual order.
    pub(super) fn reverse_bits(&mut self) {
        self.reversed = true;
    }
}

impl<R: Read> Read for Adapted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        if self.reversed {
            buffer[..length].iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        } else {
            let Hidden { palette, next } = &self.hidden;
            let (from, to) = (next.start.max(self.at), next.end.min(self.at + length as u64));
            if from < to {
                buffer[(from - self.at) as usize..(to - self.at) as usize].fill(0);
            }
            let here = palette.and_then(|byte| byte.checked_sub(self.at)).filter(|here| *here < length as u64);
            if let Some(here) = here {
                buffer[here as usize] = GRAY;
            }
        }
        self.at += length as u64;
        Ok(length)
    }
}

impl<R: Seek> Seek for Adapted<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}
