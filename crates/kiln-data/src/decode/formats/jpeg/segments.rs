//! Turns the metadata segments of a JPEG into comments, which decoders skip, damage into bytes that fill, and marks the end of
//! its coded data, so that a decoder that reads past it reports an error.
//!
//! By hand, since decoders keep metadata of any size and accept data that end too early: hostile files stay within their plan.

use std::io::{self, Seek};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::decode::patched::{Patch, Patched, Stop};
use crate::decode::source::{Input, Reader};

use super::layout::Layout;

/// Scans of a progressive JPEG; encoders write about ten. Each may cost a pass over all coefficients.
pub(super) const MAX_SCANS: usize = 100;

/// The first damage that was found while a JPEG is read, and does not keep its pixels from being decoded. Clones share it: a
/// decoder owns the reader that finds it.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundDamage(Arc<OnceLock<&'static str>>);

impl FoundDamage {
    fn add(&self, damage: &'static str) {
        self.0.get_or_init(|| damage);
    }

    pub(super) fn first(&self) -> Option<&'static str> {
        self.0.get().copied()
    }
}

/// Reads the segments of a JPEG and renames those of metadata to comments, which no decoder keeps: colour profiles, EXIF
/// (read with the header), XMP, thumbnails. Refuses a start-of-scan marker after [`MAX_SCANS`].
///
/// The segments of JFIF and Adobe, which describe the colour model, stay. Damage becomes bytes of 0xff, any number of which
/// may come before a marker: what the header named, and bytes between segments after the first scan.
///
/// After the coded data of the last scan, bits of 1 are inserted. Decoders continue with bits of 0 when coded data end too
/// early, and return pixels that the file does not have. No code is made of 1s alone (annex C), so that with these bits they
/// report an error; a complete scan ends before them. An end marker is added to a file of one scan that has none: it is read
/// nevertheless if its data are complete, as by Pillow, and is an error if they are not.
///
/// Source: ITU-T T.81, annexes B and C.
#[derive(Debug, Default)]
pub(super) struct Segments {
    state: State,
    scans: usize,
    /// Whether the segment is the header of a scan, which coded data follow.
    scan_header: bool,
    /// Where bits of 1 are still to be inserted.
    end: End,
    /// Bytes of the file that become 0xff, and the byte of the file that comes next.
    blank: Vec<Range<u64>>,
    at: u64,
    found: FoundDamage,
}

/// The coded data after which bits of 1 are inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum End {
    #[default]
    None,
    OfOnlyScan,
    /// The last of several. The only scan of progressive data is found complete by its marker.
    OfLaterScan,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Between segments, where a marker begins.
    #[default]
    Between,
    /// In coded data.
    Coded,
    /// After 0xff; whether that was in coded data.
    Marker { coded: bool },
    /// After a marker of a segment.
    Length,
    /// After the high byte of the length.
    LowLength(u8),
    /// The number of bytes of the segment that are left.
    Body(usize),
    /// After the image.
    End,
}

/// A byte that may come before a marker any number of times.
const FILL: u8 = 0xff;
const COMMENT: u8 = 0xfe;
const START_OF_IMAGE: u8 = 0xd8;
const END_OF_IMAGE: u8 = 0xd9;
const START_OF_SCAN: u8 = 0xda;

/// 64 bits of 1, each byte followed by the zero that tells it from a marker, between the 0xff and the second byte of a marker;
/// and the end marker.
const ENDING: [u8; 18] = [0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, END_OF_IMAGE];

impl Patch for Segments {
    fn patch(&mut self, piece: &mut [u8]) -> Result<(), Stop> {
        let read = self.blank_and_read(piece);
        self.at += match read {
            Ok(()) => piece.len(),
            Err(Stop::Insert { at, .. } | Stop::Refuse { at, .. }) => at,
        } as u64;
        read
    }

    fn ending(&mut self) -> &'static [u8] {
        let begun = match self.state {
            _ if self.end != End::OfOnlyScan => return &[],
            State::Coded => 0,
            State::Marker { coded: true } => 1,
            _ => return &[],
        };
        self.found.add("it has no end marker");
        (self.state, self.end) = (State::End, End::None);
        &ENDING[begun..]
    }
}

impl Segments {
    fn new(layout: &Layout, found: FoundDamage) -> Self {
        let end = match layout.sequential() {
            _ if layout.turbo() => End::None, // libjpeg-turbo checks the end by itself
            true => End::OfOnlyScan,
            false => End::OfLaterScan,
        };
        Self { blank: layout.blank.clone(), end, found, ..Self::default() }
    }

    fn blank_and_read(&mut self, piece: &mut [u8]) -> Result<(), Stop> {
        self.blank(piece);
        let mut at = 0;
        while at < piece.len() {
            let byte = piece[at];
            self.state = match self.state {
                State::Between if byte == FILL => State::Marker { coded: false },
                State::Between => {
                    self.fill(&mut piece[at]);
                    State::Between
                }
                State::Coded => match piece[at..].iter().position(|byte| *byte == 0xff) {
                    Some(marker) => {
                        at += marker;
                        State::Marker { coded: true }
                    }
                    None => break,
                },
                State::Marker { coded } => match byte {
                    0xff => State::Marker { coded },
                    // A stuffed zero or a restart.
                    0x00..=0xbf | 0xd0..=0xd7 if coded => State::Coded,
                    _ if coded && self.ends_with(byte) => {
                        self.end = End::None;
                        return Err(Stop::Insert { at, bytes: &ENDING[1..17] });
                    }
                    0x00 | 0x01 | 0xd0..=0xd7 if self.scans > 0 => {
                        self.fill(&mut piece[at]);
                        State::Between
                    }
                    START_OF_IMAGE => State::Between,
                    END_OF_IMAGE => State::End,
                    0x00..=0xbf | 0xd0..=0xd7 => {
                        let reason = "the JPEG has bytes between its segments that begin none";
                        return Err(Stop::Refuse { at, reason });
                    }
                    START_OF_SCAN => {
                        self.scans += 1;
                        if self.scans > MAX_SCANS {
                            return Err(Stop::Refuse { at, reason: "the JPEG has more than 100 scans" });
                        }
                        self.scan_header = true;
                        State::Length
                    }
                    0xe1..=0xed | 0xef => {
                        piece[at] = COMMENT;
                        State::Length
                    }
                    _ => State::Length,
                },
                State::Length => State::LowLength(byte),
                State::LowLength(high) => match usize::from(u16::from_be_bytes([high, byte])).saturating_sub(2) {
                    0 => self.after_segment(),
                    body => State::Body(body),
                },
                State::Body(left) => {
                    let here = left.min(piece.len() - at);
                    at += here - 1;
                    if here == left { self.after_segment() } else { State::Body(left - here) }
                }
                State::End => break,
            };
            at += 1;
        }
        Ok(())
    }

    /// Whether bits of 1 come before this marker, which ends coded data.
    fn ends_with(&self, marker: u8) -> bool {
        match self.end {
            End::None => false,
            End::OfOnlyScan => true,
            End::OfLaterScan => marker == END_OF_IMAGE && self.scans > 1,
        }
    }

    /// Fills the parts of a piece that the header named.
    fn blank(&self, piece: &mut [u8]) {
        let (start, end) = (self.at, self.at + piece.len() as u64);
        for range in &self.blank {
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                piece[(from - start) as usize..(to - start) as usize].fill(FILL);
            }
        }
    }

    /// Fills a byte between segments. Those before the first scan were named by the header.
    fn fill(&self, byte: &mut u8) {
        if self.scans > 0 {
            *byte = FILL;
            self.found.add(BETWEEN_SEGMENTS);
        }
    }

    fn after_segment(&mut self) -> State {
        if std::mem::take(&mut self.scan_header) { State::Coded } else { State::Between }
    }
}

pub(super) const BETWEEN_SEGMENTS: &str = "it has bytes between its segments that belong to none";

/// A JPEG as its decoders see it.
pub(super) type Adapted = Patched<Input, Segments>;

/// The file from its first byte on, without metadata and damage, and the damage that is found while it is read.
pub(super) fn adapted(mut reader: Reader, layout: &Layout) -> io::Result<(Adapted, FoundDamage)> {
    reader.rewind()?;
    let found = FoundDamage::default();
    if let Some(damage) = layout.damage {
        found.add(damage);
    }
    Ok((Patched::new(reader.into_inner(), Segments::new(layout, found.clone())), found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    fn segment(marker: u8, body: &[u8]) -> Vec<u8> {
        [&[0xff, marker][..], &(body.len() as u16 + 2).to_be_bytes(), body].concat()
    }

    /// What is read of a file, from a source that gives few bytes at a time, and the damage that was found.
    fn ended(file: &[u8], end: End, few: usize) -> (Vec<u8>, Option<&'static str>) {
        struct Few<'a>(&'a [u8], usize);
        impl Read for Few<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = buffer.len().min(self.1);
                self.0.read(&mut buffer[..length])
            }
        }
        let (found, mut out) = (FoundDamage::default(), vec![]);
        let segments = Segments { end, found: found.clone(), ..Segments::default() };
        Patched::new(Few(file, few), segments).read_to_end(&mut out).unwrap();
        (out, found.first())
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

    /// A table whose bytes may be those of every marker, and the header of a scan.
    fn before_scan(table: &[u8]) -> Vec<u8> {
        [segment(0xc4, table), segment(START_OF_SCAN, &[1])].concat()
    }

    proptest! {
    #[test]
    fn ones_come_before_the_marker_after_the_only_scan(
        table in prop::collection::vec(any::<u8>(), 0..40), coded in coded(),
        after in prop::collection::vec(any::<u8>(), 0..40), few in 1usize..9,
    ) {
        let before = before_scan(&table);
        let file = [&before[..], &coded, &[0xff, END_OF_IMAGE], &after].concat();
        let expected = [&before[..], &coded, &ENDING].concat();
        prop_assert_eq!(ended(&file, End::OfOnlyScan, few), ([&expected[..], &after].concat(), None));
        prop_assert_eq!(ended(&file, End::None, few), (file, None));
        // With the first byte of a marker, and without.
        for cut in [[&before[..], &coded].concat(), [&before[..], &coded, &[0xff]].concat()] {
            prop_assert_eq!(ended(&cut, End::OfOnlyScan, few), (expected.clone(), Some("it has no end marker")));
        }
    }

    #[test]
    fn ones_come_before_the_end_of_several_scans(
        scans in prop::collection::vec(coded(), 1..5), table in prop::collection::vec(any::<u8>(), 0..30), few in 1usize..9,
    ) {
        let before = before_scan(&table);
        let file = [&before[..], &scans.join(&before[..]), &[0xff, END_OF_IMAGE, 7]].concat();
        let mut expected = file.clone();
        if scans.len() > 1 {
            let end = file.len() - 2;
            expected.splice(end..end, ENDING[1..17].iter().copied());
        }
        prop_assert_eq!(ended(&file, End::OfLaterScan, few), (expected, None));
    }

    /// Metadata become comments and no other byte changes, whatever they contain and wherever pieces end.
    #[test]
    fn metadata_become_comments(
        bodies in prop::collection::vec((0xe0u8..0xf0, prop::collection::vec(any::<u8>(), 0..3000)), 0..40),
        coded in prop::collection::vec(0u8..0xff, 0..40_000),
    ) {
        let (mut file, mut expected) = (vec![0xff, 0xd8], vec![0xff, 0xd8]);
        let scan = [&segment(0xda, &[1, 1, 0, 0, 63, 0])[..], &coded, &[0xff, 0, 0xff, 0xd3, 7]].concat();
        for (i, (marker, body)) in bodies.iter().enumerate() {
            file.extend(segment(*marker, body));
            expected.extend(segment(if [0xe0, 0xee].contains(marker) { *marker } else { 0xfe }, body));
            if i == bodies.len() / 2 {
                file.extend(&scan);
                expected.extend(&scan);
            }
        }
        file.extend([0xff, 0xd9, 0xff, 0xe1]);
        expected.extend([0xff, 0xd9, 0xff, 0xe1]);
        let mut out = vec![];
        Patched::new(&file[..], Segments::default()).read_to_end(&mut out).unwrap();
        prop_assert!(out == expected);
    }

    #[test]
    fn the_input_ends_before_one_scan_too_many(gap in 0usize..700, more in 0usize..5) {
        let scan = [segment(0xda, &[0; 6]), vec![9; gap]].concat();
        let file = [&[0xff, 0xd8][..], &scan.repeat(MAX_SCANS + more)].concat();
        let mut out = vec![];
        let ended = Patched::new(&file[..], Segments::default()).read_to_end(&mut out);
        prop_assert_eq!(ended.is_err(), more > 0);
        prop_assert_eq!(out.len(), if more > 0 { 2 + MAX_SCANS * scan.len() + 1 } else { file.len() });
    }}
}
