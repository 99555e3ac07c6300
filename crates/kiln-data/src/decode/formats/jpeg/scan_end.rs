//! Marks the end of the coded data of a JPEG, so that a decoder that reads past it reports an error.

use std::io::{self, Read};

use super::damage::FoundDamage;

/// A JPEG with one scan, of Huffman codes, after which bits of 1 are inserted before the next marker.
///
/// Decoders continue with bits of 0 when coded data end too early, and return pixels that the file does not have. No code
/// is made of 1s alone (ITU-T T.81, annex C), so that with these bits they report an error; a complete scan ends before
/// them. An end marker is added to a file without: a file whose data are complete is read nevertheless, as by Pillow, and
/// one whose data are not is an error.
#[derive(Debug)]
pub(super) struct ScanEnd<R> {
    input: R,
    state: State,
    /// Bytes that come next, before more of `input`.
    next: io::Cursor<Vec<u8>>,
    found: FoundDamage,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The number of bytes before the coded data.
    Before(u64),
    /// In the coded data; whether the byte 0xff was read that is not handed out yet.
    Coded { held: bool },
    /// After the coded data.
    After,
}

/// 64 bits of 1, each byte followed by the zero that tells it from a marker.
const ONES: [u8; 16] = [0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0];
const END_OF_IMAGE: [u8; 2] = [0xff, 0xd9];

impl<R: Read> ScanEnd<R> {
    /// From the first byte of a file on, whose only scan begins at byte `scan`; without, the file stays as it is.
    pub(super) fn new(input: R, scan: Option<u64>, found: FoundDamage) -> Self {
        let state = scan.map_or(State::After, State::Before);
        Self { input, state, next: io::Cursor::default(), found }
    }

    /// Reads coded data. Buffers have room for two bytes at least.
    fn coded(&mut self, held: bool, buffer: &mut [u8]) -> io::Result<usize> {
        let begin = usize::from(held);
        buffer[..begin].fill(0xff);
        let read = self.input.read(&mut buffer[begin..])?;
        if read == 0 {
            self.found.add("it has no end marker");
            self.state = State::After;
            self.next = io::Cursor::new([&ONES[..], &END_OF_IMAGE].concat());
            return Ok(0);
        }
        let data = &buffer[..begin + read];
        // 0xff with a zero is data, with 0xff a byte that fills, with 0xd0 to 0xd7 a restart.
        let marker = data.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff | 0xd0..=0xd7));
        if let Some(marker) = marker {
            self.state = State::After;
            self.next = io::Cursor::new([&ONES, &data[marker..]].concat());
            return Ok(marker);
        }
        let held = data[data.len() - 1] == 0xff;
        self.state = State::Coded { held };
        Ok(data.len() - usize::from(held))
    }
}

impl<R: Read> Read for ScanEnd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.len() < 2 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            let next = self.next.read(buffer)?;
            if next > 0 {
                return Ok(next);
            }
            match self.state {
                State::Before(0) => self.state = State::Coded { held: false },
                State::Before(left) => {
                    let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
                    let length = self.input.read(&mut buffer[..most])?;
                    self.state = State::Before(left - length as u64);
                    return Ok(length);
                }
                State::Coded { held } => match self.coded(held, buffer)? {
                    0 => (),
                    length => return Ok(length),
                },
                State::After => return self.input.read(buffer),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads few bytes at a time, from a source that gives few.
    fn read(file: &[u8], scan: Option<u64>, few: usize) -> (Vec<u8>, Option<&'static str>) {
        struct Few<'a>(&'a [u8], usize);
        impl Read for Few<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = buffer.len().min(self.1);
                self.0.read(&mut buffer[..length])
            }
        }
        let found = FoundDamage::default();
        let mut reader = ScanEnd::new(Few(file, few), scan, found.clone());
        let (mut out, mut buffer) = (vec![], [0; 7]);
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => return (out, found.first()),
                length => out.extend_from_slice(&buffer[..length]),
            }
        }
    }

    proptest! {
        #[test]
        fn ones_come_before_the_marker_after_the_scan(
            before in prop::collection::vec(any::<u8>(), 0..40),
            coded in prop::collection::vec(prop_oneof![
                (0u8..0xff).prop_map(|byte| vec![byte]), Just(vec![0xff, 0]), Just(vec![0xff, 0xd3]), Just(vec![0xff, 0xff, 0])
            ], 0..40),
            after in prop::collection::vec(any::<u8>(), 0..40), few in 1usize..9,
        ) {
            let coded = coded.concat();
            let scan = Some(before.len() as u64);
            let file = [&before[..], &coded, &END_OF_IMAGE, &after].concat();
            let expected = [&before[..], &coded, &ONES, &END_OF_IMAGE, &after].concat();
            prop_assert_eq!(read(&file, scan, few), (expected.clone(), None));
            prop_assert_eq!(read(&file, None, few), (file, None));
            let cut = [&before[..], &coded].concat();
            let expected = expected[..expected.len() - after.len()].to_vec();
            prop_assert_eq!(read(&cut, scan, few), (expected, Some("it has no end marker")));
        }
    }
}
