//! A reader that changes or inserts bytes of a file, so that decoders skip metadata and find the end of damaged data.
//!
//! By hand: it feeds libraries a changed file without a copy of it.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use super::source::PIECE;

/// Changes single bytes of a file while it is read, so that a decoder skips metadata instead of keeping it.
pub(crate) trait Patch {
    /// Reads and changes the next bytes of the file.
    ///
    /// # Errors
    /// [`Stop`] where bytes must be inserted or the file must not be as it is; the bytes before are still read.
    fn patch(&mut self, piece: &mut [u8]) -> Result<(), Stop>;

    /// The bytes that are missing at the end of the file, at most [`MOST_INSERTED`]. Called until there are none.
    fn ending(&mut self) -> &'static [u8] {
        &[]
    }
}

/// The first `at` bytes of a piece were read and changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stop {
    /// The others are refused.
    Refuse { at: usize, reason: &'static str },
    /// At most [`MOST_INSERTED`] bytes come before the others. A piece has at most one place of this kind.
    Insert { at: usize, bytes: &'static [u8] },
}

/// The most bytes that a [`Patch`] inserts at a time.
pub(crate) const MOST_INSERTED: usize = 32;

/// A file with the changes of its [`Patch`]. Positions count what is read, inserted bytes included; reading single bytes is fast.
///
/// It is read forwards. Seeking back is possible by [`BACK`] bytes, for decoders that look ahead.
#[derive(Debug)]
pub(crate) struct Patched<R, P> {
    input: R,
    patch: P,
    /// The last bytes that were read, and then the next ones.
    piece: Box<[u8]>,
    at: usize,
    end: usize,
    /// Where in the file `end` is.
    position: u64,
    refused: Option<&'static str>,
}

/// The most bytes to seek back.
const BACK: usize = 256;

impl<R: Read, P: Patch> Patched<R, P> {
    /// From where `input` is, the start of a file.
    pub(crate) fn new(input: R, patch: P) -> Self {
        let piece = vec![0; BACK + PIECE + MOST_INSERTED].into();
        Self { input, patch, piece, at: BACK, end: BACK, position: 0, refused: None }
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.at < self.end {
            return Ok(());
        }
        if let Some(reason) = self.refused {
            return Err(io::Error::other(reason));
        }
        self.piece.copy_within(self.end - BACK..self.end, 0);
        (self.at, self.end) = (BACK, BACK);
        let length = self.input.read(&mut self.piece[BACK..BACK + PIECE])?;
        self.end += length;
        let mut from = BACK;
        loop {
            match self.patch.patch(&mut self.piece[from..self.end]) {
                Ok(()) => break,
                Err(Stop::Refuse { at, reason }) => {
                    (self.end, self.refused) = (from + at, Some(reason));
                    break;
                }
                Err(Stop::Insert { at, bytes }) => {
                    from += at;
                    self.piece.copy_within(from..self.end, from + bytes.len());
                    self.insert(from, bytes);
                    from += bytes.len();
                }
            }
        }
        if length == 0 {
            let missing = self.patch.ending();
            self.insert(self.end, missing);
        }
        self.position += (self.end - BACK) as u64;
        match self.refused {
            Some(reason) if self.end == BACK => Err(io::Error::other(reason)),
            _ => Ok(()),
        }
    }

    /// Writes bytes, for which there is room, at a place of the piece.
    fn insert(&mut self, at: usize, bytes: &[u8]) {
        self.piece[at..at + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }
}

impl<R: Read, P: Patch> Read for Patched<R, P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fill()?;
        let length = buffer.len().min(self.end - self.at);
        buffer[..length].copy_from_slice(&self.piece[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }

    #[inline]
    fn read_exact(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        if let ([byte], true) = (&mut *buffer, self.at < self.end) {
            *byte = self.piece[self.at];
            self.at += 1;
            return Ok(());
        }
        while !buffer.is_empty() {
            match self.read(buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => buffer = &mut buffer[length..],
            }
        }
        Ok(())
    }
}

impl<R: Read, P: Patch> BufRead for Patched<R, P> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill()?;
        Ok(&self.piece[self.at..self.end])
    }

    fn consume(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.end);
    }
}

impl<R: Read, P: Patch> Seek for Patched<R, P> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let now = self.position - (self.end - self.at) as u64;
        let target = match to {
            SeekFrom::Start(target) => Some(target),
            SeekFrom::Current(offset) => now.checked_add_signed(offset),
            SeekFrom::End(_) => None,
        };
        let target = target.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        if let Some(mut ahead) = target.checked_sub(now) {
            while ahead > 0 {
                let length = (self.fill_buf()?.len() as u64).min(ahead);
                if length == 0 {
                    break; // beyond the end of the file, where there is nothing to read
                }
                self.consume(length as usize);
                ahead -= length;
            }
        } else {
            let back = usize::try_from(now - target).ok().and_then(|back| self.at.checked_sub(back));
            self.at = back.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        }
        Ok(self.position - (self.end - self.at) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Leaves everything as it is up to the first 9.
    struct NoNine;

    impl Patch for NoNine {
        fn patch(&mut self, piece: &mut [u8]) -> Result<(), Stop> {
            let nine = piece.iter().position(|byte| *byte == 9);
            nine.map_or(Ok(()), |at| Err(Stop::Refuse { at, reason: "nine" }))
        }
    }

    /// Hands out few bytes at a time.
    struct Few<'a>(&'a [u8], usize);

    impl Read for Few<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(self.1);
            self.0.read(&mut buffer[..length])
        }
    }

    proptest! {
        #[test]
        fn bytes_come_as_they_are_however_they_are_asked_for(
            bytes in prop::collection::vec(10u8..200, 0..2000), few in 1usize..600,
            steps in prop::collection::vec((1usize..40, 0i64..40), 1..200),
        ) {
            let mut reader = Patched::new(Few(&bytes, few), NoNine);
            let mut at = 0;
            for (length, back) in steps {
                let mut part = vec![0; length];
                if reader.read_exact(&mut part).is_err() {
                    prop_assert!(at + length > bytes.len());
                    return Ok(());
                }
                prop_assert_eq!(&part[..], &bytes[at..at + length]);
                at += length;
                // Back, and half as far forwards.
                let back = back.min(at as i64);
                prop_assert_eq!(reader.seek(SeekFrom::Current(-back)).unwrap(), at as u64 - back as u64);
                prop_assert_eq!(reader.seek(SeekFrom::Current(back / 2)).unwrap(), (at as i64 - back + back / 2) as u64);
                at = (at as i64 - back + back / 2) as usize;
            }
        }

        #[test]
        fn the_input_ends_before_what_is_refused(before in 0usize..70_000, after in 0usize..5) {
            let bytes = [vec![1; before], vec![9], vec![1; after]].concat();
            let mut out = vec![];
            prop_assert!(Patched::new(&bytes[..], NoNine).read_to_end(&mut out).is_err());
            prop_assert_eq!(out.len(), before);
        }
    }
}
