//! A reader that hides from the decoder of TIFFs what it does not support: palettes, and bits in reverse order.

use std::io::{self, Read, Seek, SeekFrom};

/// A TIFF whose photometric interpretation, at `gray_at` of the file, is read as gray, so that the decoder returns the
/// indices into a palette. The bits of each byte are reversed after [`reverse_bits`](Self::reverse_bits).
#[derive(Debug)]
pub(super) struct Adapted<R> {
    file: R,
    at: u64,
    gray_at: Option<u64>,
    reversed: bool,
}

/// BlackIsZero.
const GRAY: u8 = 1;

impl<R> Adapted<R> {
    /// `file` is at its first byte.
    pub(super) fn new(file: R, gray_at: Option<u64>) -> Self {
        Self { file, at: 0, gray_at, reversed: false }
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
        let here = self.gray_at.and_then(|byte| byte.checked_sub(self.at)).filter(|here| *here < length as u64);
        if let Some(here) = here {
            buffer[here as usize] = GRAY;
        }
        if self.reversed {
            buffer[..length].iter_mut().for_each(|byte| *byte = byte.reverse_bits());
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
