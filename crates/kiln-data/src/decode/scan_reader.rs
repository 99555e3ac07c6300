use std::io::{self, Read};

use super::input::{Input, PIECE, Reader};

/// Scans of a progressive JPEG; encoders write about ten. Each may cost a pass over all coefficients.
pub(super) const MAX_SCANS: usize = 100;

/// A JPEG for jpeg-decoder, which asks for one byte after the other and does not count scans: a byte is handed out of a
/// piece at little cost, and the input ends before the start-of-scan marker that is one too many.
pub(super) struct ScanReader {
    input: Input,
    piece: Box<[u8]>,
    /// The part of the piece that is still to be handed out.
    at: usize,
    end: usize,
    after_ff: bool,
    scans: usize,
}

impl ScanReader {
    /// From where `reader` is, which holds nothing back: it was just rewound.
    pub(super) fn new(reader: Reader) -> Self {
        debug_assert!(reader.buffer().is_empty());
        let piece = vec![0; PIECE].into();
        Self { input: reader.into_inner(), piece, at: 0, end: 0, after_ff: false, scans: 0 }
    }

    fn too_many() -> io::Error {
        io::Error::other(format!("more than {MAX_SCANS} scans"))
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.scans > MAX_SCANS {
            return Err(Self::too_many());
        }
        (self.at, self.end) = (0, self.input.read(&mut self.piece)?);
        let piece = &self.piece[..self.end];
        let Some((first, rest)) = piece.split_first() else { return Ok(()) };
        let across = usize::from(self.after_ff && *first == 0xda);
        // A plain sum over neighbours is a handful of vector instructions.
        let within: usize = piece.iter().zip(rest).map(|(a, b)| usize::from(*a == 0xff && *b == 0xda)).sum();
        self.after_ff = piece.last() == Some(&0xff);
        if self.scans + across + within > MAX_SCANS {
            let starts = piece.windows(2).enumerate().filter(|(_, pair)| *pair == [0xff, 0xda]).map(|(at, _)| at + 1);
            let mut starts = (across == 1).then_some(0).into_iter().chain(starts);
            self.end = starts.nth(MAX_SCANS - self.scans).unwrap_or(self.end);
        }
        self.scans += across + within;
        match self.end {
            0 => Err(Self::too_many()),
            _ => Ok(()),
        }
    }
}

impl Read for ScanReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.end {
            self.fill()?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn reader(bytes: &[u8]) -> ScanReader {
        ScanReader::new(Input::Bytes(Cursor::new(bytes.into())).buffered())
    }

    proptest! {
        #[test]
        fn bytes_come_as_they_are_however_they_are_asked_for(
            bytes in prop::collection::vec(any::<u8>(), 0..500), lengths in prop::collection::vec(1usize..9, 1..600),
        ) {
            let (mut reader, mut out) = (reader(&bytes), vec![]);
            for length in lengths {
                let mut part = vec![0; length];
                if reader.read_exact(&mut part).is_err() {
                    prop_assert!(out.len() + length > bytes.len());
                    return Ok(());
                }
                out.extend(part);
            }
            prop_assert_eq!(&out[..], &bytes[..out.len()]);
        }

        /// The scan too many is nowhere to be read, wherever pieces are cut.
        #[test]
        fn the_input_ends_before_one_scan_too_many(before in 0usize..70_000, gap in 0usize..700, more in 0usize..5) {
            let mut bytes = vec![7; before];
            for _ in 0..MAX_SCANS + more {
                bytes.extend([0xff, 0xda]);
                bytes.extend(vec![9; gap]);
            }
            let mut out = vec![];
            let ended = reader(&bytes).read_to_end(&mut out);
            prop_assert_eq!(ended.is_err(), more > 0);
            let end = if more > 0 { before + MAX_SCANS * (2 + gap) + 1 } else { bytes.len() };
            prop_assert_eq!(out.len(), end);
        }
    }
}
