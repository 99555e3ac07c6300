//! How the pixels of a file are turned and mirrored to be upright.
//!
//! By hand, since the `image` crate turns only whole images, into a second one of the same size.

use super::image::{Area, Image};

/// How the pixels of a file are turned to be upright (EXIF tag 0x0112).
///
/// Row `y`, column `x` of the upright image is row `a`, column `b` of the file, where `(a, b)` is `(y, x)`, or
/// `(x, y)` when transposed, each counted from the other end when flipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orientation {
    /// Rows and columns are exchanged.
    pub transpose: bool,
    /// The file's rows are in reverse order.
    pub flip_rows: bool,
    /// The file's columns are in reverse order.
    pub flip_columns: bool,
}

impl Orientation {
    /// The orientation of an EXIF value, 1 to 8.
    ///
    /// Source: CIPA DC-008 (EXIF 2.32), section 4.6.4, "Orientation".
    pub fn from_exif(value: u8) -> Option<Self> {
        let (transpose, flip_rows, flip_columns) = match value {
            1 => (false, false, false),
            2 => (false, false, true),
            3 => (false, true, true),
            4 => (false, true, false),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => return None,
        };
        Some(Self { transpose, flip_rows, flip_columns })
    }

    /// The orientation in the first directory of an EXIF block, if it is there. The block begins with its TIFF header or, as
    /// some programs write it in PNG and WebP too, with the name that it has in a JPEG.
    pub(crate) fn in_exif(mut exif: &[u8]) -> Option<Self> {
        while let Some(rest) = exif.strip_prefix(b"Exif\0\0") {
            exif = rest;
        }
        exif_value(exif).and_then(Self::from_exif)
    }

    /// The orientation in XMP, which is text: `tiff:Orientation="6"` or `<tiff:Orientation>6<`. For images without EXIF, as
    /// in Pillow.
    pub(crate) fn in_xmp(xmp: &[u8]) -> Option<Self> {
        const NAME: &[u8] = b"tiff:Orientation";
        let at = xmp.windows(NAME.len()).position(|name| name == NAME)?;
        match xmp.get(at + NAME.len()..)? {
            [b'=', b'"' | b'\'', digit, ..] | [b'>', digit, ..] => Self::from_exif(digit.wrapping_sub(b'0')),
            _ => None,
        }
    }

    /// `[height, width]` of the upright image from those of the file, and the other way round.
    pub(crate) fn size(self, [height, width]: [usize; 2]) -> [usize; 2] {
        if self.transpose { [width, height] } else { [height, width] }
    }

    /// Followed by mirroring the upright image left to right.
    pub(crate) fn then_mirror(self) -> Self {
        match self.transpose {
            true => Self { flip_rows: !self.flip_rows, ..self },
            false => Self { flip_columns: !self.flip_columns, ..self },
        }
    }

    /// The area of the file, of size `[height, width]`, for an area of the upright image.
    pub(crate) fn stored_area(self, seen: &Area, [height, width]: [usize; 2]) -> Area {
        let mut area = match self.transpose {
            true => Area { top: seen.left, left: seen.top, height: seen.width, width: seen.height },
            false => *seen,
        };
        if self.flip_rows {
            area.top = (height as f64 - area.top - area.height).max(0.0);
        }
        if self.flip_columns {
            area.left = (width as f64 - area.left - area.width).max(0.0);
        }
        area
    }

    /// Turns pixels in the file's order into the upright image.
    pub(crate) fn apply(self, stored: Image) -> Image {
        if self == Self::default() {
            return stored;
        }
        let [height, width] = self.size([stored.height, stored.width]);
        let mut pixels = Vec::with_capacity(stored.pixels.len());
        for y in 0..height {
            for x in 0..width {
                let (a, b) = if self.transpose { (x, y) } else { (y, x) };
                let a = if self.flip_rows { stored.height - 1 - a } else { a };
                let b = if self.flip_columns { stored.width - 1 - b } else { b };
                let at = (a * stored.width + b) * stored.channels;
                pixels.extend_from_slice(&stored.pixels[at..at + stored.channels]);
            }
        }
        Image { pixels, height, width, channels: stored.channels }
    }
}

/// The value of the tag Orientation in the first directory of a TIFF (TIFF 6.0, section 2).
fn exif_value(tiff: &[u8]) -> Option<u8> {
    let little = match tiff.get(..4)? {
        b"II\x2a\0" => true,
        b"MM\0\x2a" => false,
        _ => return None,
    };
    let number = |at: usize, length: usize| {
        let bytes = tiff.get(at..at.checked_add(length)?)?;
        let add = |sum, byte: &u8| sum << 8 | usize::from(*byte);
        Some(if little { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) })
    };
    let start = number(4, 4)?;
    for i in 0..number(start, 2)? {
        let entry = start + 2 + 12 * i;
        if number(entry, 2)? == ORIENTATION {
            let bytes = match number(entry + 2, 2)? {
                1 | 6 => 1,
                3 | 8 => 2,
                4 | 9 => 4,
                _ => return None,
            };
            return u8::try_from(number(entry + 8, bytes)?).ok();
        }
    }
    None
}

const ORIENTATION: usize = 0x0112;

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rows of three pixels: a b c / d e f.
    fn letters() -> Image {
        Image { pixels: b"abcdef".to_vec(), height: 2, width: 3, channels: 1 }
    }

    #[test]
    fn each_value_turns_as_the_standard_draws_it() {
        let expected = ["abc/def", "cba/fed", "fed/cba", "def/abc", "ad/be/cf", "da/eb/fc", "fc/eb/da", "cf/be/ad"];
        for (value, expected) in (1..).zip(expected) {
            let orientation = Orientation::from_exif(value).unwrap();
            let seen = orientation.apply(letters());
            let rows: Vec<_> = seen.pixels.chunks(seen.width).map(String::from_utf8_lossy).collect();
            assert_eq!(rows.join("/"), expected, "{value}");

            let mirrored = orientation.then_mirror().apply(letters());
            let rows: Vec<String> = expected.split('/').map(|row| row.chars().rev().collect()).collect();
            assert_eq!(String::from_utf8_lossy(&mirrored.pixels), rows.concat(), "{value} mirrored");
        }
        assert_eq!([0, 9, 255].map(Orientation::from_exif), [None; 3]);
    }

    #[test]
    fn exif_is_read_in_both_byte_orders_and_with_its_name() {
        let entry = |little: bool, kind: u16, value: u32| {
            let (mark, size) = if little { (b"II", 4) } else { (b"MM", if kind == 3 { 2 } else { 4 }) };
            let short = |value: u16| if little { value.to_le_bytes() } else { value.to_be_bytes() };
            let long = |value: u32| if little { value.to_le_bytes() } else { value.to_be_bytes() };
            let mut value = if size == 2 { short(value as u16).to_vec() } else { long(value).to_vec() };
            value.resize(4, 0);
            [&mark[..], &short(42), &long(8), &short(1), &short(0x112), &short(kind), &long(1), &value].concat()
        };
        for (little, kind) in [(true, 3), (true, 4), (false, 3), (false, 4)] {
            for value in 1..=8 {
                let exif = entry(little, kind, u32::from(value));
                let expected = Orientation::from_exif(value);
                assert_eq!(Orientation::in_exif(&exif), expected);
                assert_eq!(Orientation::in_exif(&[b"Exif\0\0", &exif[..]].concat()), expected);
                for length in 0..exif.len() - 4 {
                    assert_eq!(Orientation::in_exif(&exif[..length]), None);
                }
            }
        }
        assert_eq!(Orientation::in_exif(&entry(true, 2, 6)), None);
        assert_eq!(Orientation::in_exif(&entry(false, 4, 262)), None);
    }

    #[test]
    fn xmp_has_it_as_an_attribute_or_as_an_element() {
        for (text, value) in [
            ("<rdf:Description tiff:Orientation=\"6\"/>", Some(6)),
            ("<rdf:Description><tiff:Orientation>3</tiff:Orientation>", Some(3)),
            ("tiff:Orientation=\"", None),
            ("tiff:Orientation=\"x\"", None),
            ("exif:Orientation=\"6\"", None),
        ] {
            assert_eq!(Orientation::in_xmp(text.as_bytes()), value.and_then(Orientation::from_exif), "{text}");
        }
    }

    #[test]
    fn a_pixel_as_seen_is_found_in_the_file() {
        for value in 1..=8 {
            let orientation = Orientation::from_exif(value).unwrap();
            let seen = orientation.apply(letters());
            for (i, letter) in seen.pixels.iter().enumerate() {
                let [top, left] = [i / seen.width, i % seen.width].map(|n| n as f64);
                let area = orientation.stored_area(&Area { top, left, height: 1.0, width: 1.0 }, [2, 3]);
                assert_eq!(letters().pixels[area.top as usize * 3 + area.left as usize], *letter, "{value}");
            }
        }
    }
}
