//! The blocks of a GIF: metadata are skipped, and the first frame tells what decoding takes.
//!
//! By hand, since the decoder keeps colour profiles and XMP of any size: hostile metadata stay within the plan of a file.

use std::io::BufRead;

use crate::decode::patched::{Patch, Stop};
use crate::decode::source::{Reader, Reason, take};

/// Renames the application extensions of a GIF to comments, because the decoder would keep the colour profile and XMP in
/// them.
///
/// Source: GIF 89a, sections 18 to 26.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    state: State,
    /// The flags of the descriptor that is being read.
    flags: u8,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The number of bytes left of the signature and the screen descriptor; the flags are third to last.
    Screen(usize),
    /// The number of bytes left of a colour table.
    Colours(usize),
    Block,
    Label,
    /// The number of bytes left of an image descriptor; the flags are the last.
    Descriptor(usize),
    /// The width of the codes, after a local colour table.
    CodeSize,
    LocalColours(usize),
    /// The length of a sub-block.
    Length,
    SubBlock(usize),
    End,
}

impl Default for State {
    fn default() -> Self {
        Self::Screen(13)
    }
}

/// Bytes of the colour table that the flags announce.
fn table(flags: u8) -> usize {
    if flags & 0x80 == 0 { 0 } else { 3 * (2 << (flags & 7)) }
}

impl Patch for Blocks {
    fn patch(&mut self, piece: &mut [u8]) -> Result<(), Stop> {
        let mut at = 0;
        while at < piece.len() {
            let byte = &mut piece[at];
            self.state = match self.state {
                State::Screen(left) => {
                    if left == 3 {
                        self.flags = *byte;
                    }
                    match (left, table(self.flags)) {
                        (1, 0) => State::Block,
                        (1, colours) => State::Colours(colours),
                        _ => State::Screen(left - 1),
                    }
                }
                State::Block => match *byte {
                    0x21 => State::Label,
                    0x2c => State::Descriptor(9),
                    _ => State::End,
                },
                State::Label => {
                    if *byte == 0xff {
                        *byte = 0xfe;
                    }
                    State::Length
                }
                State::Descriptor(1) => match table(*byte) {
                    0 => State::CodeSize,
                    colours => State::LocalColours(colours),
                },
                State::Descriptor(left) => State::Descriptor(left - 1),
                State::CodeSize => State::Length,
                State::Length => match usize::from(*byte) {
                    0 => State::Block,
                    length => State::SubBlock(length),
                },
                State::Colours(left) | State::LocalColours(left) | State::SubBlock(left) => {
                    let here = left.min(piece.len() - at);
                    at += here - 1;
                    match (self.state, left - here) {
                        (State::Colours(_), 0) => State::Block,
                        (State::LocalColours(_), 0) => State::CodeSize,
                        (State::SubBlock(_), 0) => State::Length,
                        (State::Colours(_), left) => State::Colours(left),
                        (State::LocalColours(_), left) => State::LocalColours(left),
                        (_, left) => State::SubBlock(left),
                    }
                }
                State::End => break,
            };
            at += 1;
        }
        Ok(())
    }
}

/// Bytes that decoding takes at its peak besides the decoded pixels: a frame that is narrower than the screen is decoded
/// into a buffer of its own, and the indices into the palette are copied.
///
/// Source: image 0.25.10, `codecs/gif.rs`; gif 0.14, `reader/converter.rs`.
pub(super) fn inside(reader: &mut Reader, [height, width]: [usize; 2]) -> Result<u64, Reason> {
    let [left, top, columns, rows] = first_frame(reader)?;
    let indices = (rows * columns) as u64;
    let fits = left == 0 && columns == width && top + rows <= height;
    Ok(indices + if fits { 0 } else { 4 * indices })
}

/// Left, top, width and height of the first image descriptor.
fn first_frame(reader: &mut Reader) -> Result<[usize; 4], Reason> {
    let start: [u8; 13] = take(reader, CUT)?;
    skip(reader, table(start[10]))?;
    loop {
        match take(reader, CUT)? {
            [0x21] => {
                skip(reader, 1)?;
                loop {
                    match take(reader, CUT)? {
                        [0] => break,
                        [length] => skip(reader, usize::from(length))?,
                    }
                }
            }
            [0x2c] => {
                let [x0, x1, y0, y1, w0, w1, h0, h1]: [u8; 8] = take(reader, CUT)?;
                let sides = [[x0, x1], [y0, y1], [w0, w1], [h0, h1]];
                return Ok(sides.map(|bytes| usize::from(u16::from_le_bytes(bytes))));
            }
            [other] => return Err(format!("block 0x{other:02x} before the first image of the GIF").into()),
        }
    }
}

const CUT: &str = "the GIF ends before its first image";

fn skip(reader: &mut Reader, mut bytes: usize) -> Result<(), Reason> {
    while bytes > 0 {
        let here = reader.fill_buf()?.len().min(bytes);
        if here == 0 {
            return Err(CUT.into());
        }
        reader.consume(here);
        bytes -= here;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::patched::Patched;
    use proptest::prelude::*;
    use std::io::Read;

    proptest! {
        #[test]
        fn application_extensions_become_comments(
            labels in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 1..200)), 0..30),
            size in 0u8..8, pixels in prop::collection::vec(any::<u8>(), 1..250),
        ) {
            let file = |label: &dyn Fn(u8) -> u8| {
                let mut gif = [&b"GIF89a\x05\0\x05\0"[..], &[0x80 | size, 0, 0], &vec![0xff; 3 * (2 << size)]].concat();
                for (i, (name, body)) in labels.iter().enumerate() {
                    gif.extend([0x21, label(*name), body.len() as u8]);
                    gif.extend([&body[..], &[0]].concat());
                    if i % 5 == 2 {
                        gif.extend([0x2c, 0, 0, 0, 0, 5, 0, 5, 0, 0x81]);
                        gif.extend([&[0x21; 12][..], &[8, pixels.len() as u8], &pixels, &[0]].concat());
                    }
                }
                [gif, vec![0x3b, 0x21, 0xff]].concat()
            };
            let mut out = vec![];
            Patched::new(&file(&|name| name)[..], Blocks::default()).read_to_end(&mut out).unwrap();
            let expected = file(&|name| if name == 0xff { 0xfe } else { name });
            prop_assert!(out == expected);
        }
    }
}
