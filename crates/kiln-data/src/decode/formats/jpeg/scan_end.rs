//! Marks the end of the coded data of a JPEG, so that a decoder that reads past it reports an error.

use std::io::{self, Read};

use super::damage::FoundDamage;

/// A JPEG of Huffman codes. After the coded data of its last scan, bits of 1 are inserted.
///
/// Decoders continue with bits of 0 when coded data end too early, and return pixels that the file does not have. No code
/// is made of 1s alone (ITU-T T.81, annex C), so that with these bits they report an error; a complete scan ends before
/// them. An end marker is added to a file of one scan that has none: it is read nevertheless if its data are complete, as
/// by Pillow, and is an error if they are not.
#[derive(Debug)]
pub(super) struct ScanEnd<R> {
    input: R,
    state: State,
    /// Whether there is one scan only; another may follow otherwise.
    only: bool,
    /// Scans that have begun.
    scans: usize,
    /// Bytes that come next, before more of `input`.
    next: io::Cursor<Vec<u8>>,
    found: FoundDamage,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The number of bytes before the first coded data.
    Before(u64),
    Coded,
    /// Between segments after a scan.
    Between,
    /// After 0xff; whether that was in coded data.
    Marker {
        coded: bool,
    },
    /// After the marker of a segment, and after the high byte of its length; whether it is the header of a scan.
    Length {
        scan: bool,
    },
    LowLength {
        scan: bool,
        high: u8,
    },
    /// The number of bytes that are left of a segment.
    Body {
        scan: bool,
        left: usize,
    },
    /// After the last coded data.
    After,
}

/// Comes after 0xff and before the byte that makes a marker of it: 64 bits of 1, each byte followed by the zero that tells
/// it from a marker, and the 0xff of the marker.
const ONES: [u8; 16] = [0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff];
const START_OF_SCAN: u8 = 0xda;
const END_OF_IMAGE: u8 = 0xd9;

impl<R: Read> ScanEnd<R> {
    /// From the first byte of a file on, whose coded data begin at byte `scan`, and which has one scan `only`, or several.
    /// Without coded data, the file stays as it is.
    pub(super) fn new(input: R, scan: Option<u64>, only: bool, found: FoundDamage) -> Self {
        let state = scan.map_or(State::After, State::Before);
        Self { input, state, only, scans: 1, next: io::Cursor::default(), found }
    }

    /// Reads the next bytes. Returns the place of the marker after the last coded data, if it is among them.
    fn find_end(&mut self, data: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < data.len() {
            let byte = data[at];
            let data_or_between = |scan| if scan { State::Coded } else { State::Between };
            self.state = match self.state {
                State::Coded => {
                    at += data[at..].iter().position(|byte| *byte == 0xff)?;
                    State::Marker { coded: true }
                }
                State::Between if byte == 0xff => State::Marker { coded: false },
                State::Between => State::Between,
                State::Marker { coded } => match byte {
                    0xff => State::Marker { coded },
                    0x00..=0xbf | 0xd0..=0xd7 => data_or_between(coded),
                    // The only scan of progressive data is found complete by its marker.
                    _ if coded && (self.only || byte == END_OF_IMAGE && self.scans > 1) => {
                        self.state = State::After;
                        return Some(at);
                    }
                    END_OF_IMAGE => State::After,
                    START_OF_SCAN => {
                        self.scans += 1;
                        State::Length { scan: true }
                    }
                    _ => State::Length { scan: false },
                },
                State::Length { scan } => State::LowLength { scan, high: byte },
                State::LowLength { scan, high } => {
                    match usize::from(u16::from_be_bytes([high, byte])).saturating_sub(2) {
                        0 => data_or_between(scan),
                        left => State::Body { scan, left },
                    }
                }
                State::Body { scan, left } => {
                    let here = left.min(data.len() - at);
                    at += here - 1;
                    if here == left { data_or_between(scan) } else { State::Body { scan, left: left - here } }
                }
                State::Before(_) | State::After => return None,
            };
            at += 1;
        }
        None
    }

    /// The bytes that are missing at the end of a file.
    fn ending(&mut self) -> Vec<u8> {
        let bytes = match self.state {
            State::Coded | State::Marker { coded: true } if self.only => {
                self.found.add("it has no end marker");
                let begun = matches!(self.state, State::Marker { .. });
                [&[0xff][usize::from(begun)..], &ONES, &[END_OF_IMAGE]].concat()
            }
            _ => vec![],
        };
        self.state = State::After;
        bytes
    }
}

impl<R: Read> Read for ScanEnd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let next = self.next.read(buffer)?;
            if next > 0 || buffer.is_empty() {
                return Ok(next);
            }
            match self.state {
                State::Before(0) => self.state = State::Coded,
                State::Before(left) => {
                    let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
                    let length = self.input.read(&mut buffer[..most])?;
                    self.state = State::Before(left - length as u64);
                    return Ok(length);
                }
                State::After => return self.input.read(buffer),
                _ => {
                    let length = self.input.read(buffer)?;
                    match self.find_end(&buffer[..length]) {
                        Some(end) => {
                            self.next = io::Cursor::new([&ONES, &buffer[end..length]].concat());
                            if end > 0 {
                                return Ok(end);
                            }
                        }
                        None if length > 0 => return Ok(length),
                        None => self.next = io::Cursor::new(self.ending()),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads few bytes at a time, from a source that gives few.
    fn read(file: &[u8], scan: Option<u64>, only: bool, few: usize) -> (Vec<u8>, Option<&'static str>) {
        struct Few<'a>(&'a [u8], usize);
        impl Read for Few<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = buffer.len().min(self.1);
                self.0.read(&mut buffer[..length])
            }
        }
        let found = FoundDamage::default();
        let mut reader = ScanEnd::new(Few(file, few), scan, only, found.clone());
        let (mut out, mut buffer) = (vec![], [0; 7]);
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => return (out, found.first()),
                length => out.extend_from_slice(&buffer[..length]),
            }
        }
    }

    fn coded() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            (0u8..0xff).prop_map(|byte| vec![byte]),
            Just(vec![0xff, 0]),
            Just(vec![0xff, 0xd3]),
            Just(vec![0xff, 0xff, 0])
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    const END: [u8; 2] = [0xff, END_OF_IMAGE];

    proptest! {
        #[test]
        fn ones_come_before_the_marker_after_the_only_scan(
            before in prop::collection::vec(any::<u8>(), 0..40), coded in coded(),
            after in prop::collection::vec(any::<u8>(), 0..40), few in 1usize..9,
        ) {
            let scan = Some(before.len() as u64);
            let file = [&before[..], &coded, &END, &after].concat();
            let expected = [&before[..], &coded, &[0xff], &ONES, &[END_OF_IMAGE], &after].concat();
            prop_assert_eq!(read(&file, scan, true, few), (expected.clone(), None));
            prop_assert_eq!(read(&file, None, true, few), (file, None));
            // With the first byte of a marker, and without.
            let ended = expected[..expected.len() - after.len()].to_vec();
            for cut in [[&before[..], &coded].concat(), [&before[..], &coded, &[0xff]].concat()] {
                prop_assert_eq!(read(&cut, scan, true, few), (ended.clone(), Some("it has no end marker")));
            }
        }

        #[test]
        fn ones_come_before_the_end_of_several_scans(
            scans in prop::collection::vec(coded(), 1..5), table in prop::collection::vec(any::<u8>(), 0..30), few in 1usize..9,
        ) {
            // Tables may have the bytes of every marker.
            let table = [&[0xff, 0xc4, 0, table.len() as u8 + 2][..], &table, &[0xff, START_OF_SCAN, 0, 3, 1]].concat();
            let file = [&scans.join(&table[..])[..], &END, &[7]].concat();
            let mut expected = file.clone();
            if scans.len() > 1 {
                let end = file.len() - 2;
                expected.splice(end..end, ONES);
            }
            prop_assert_eq!(read(&file, Some(0), false, few), (expected, None));
        }
    }
}
