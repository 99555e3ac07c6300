//! The two ways from a value to its code and back: by the table of a code book, and by the root.

use super::CodeBook;
use super::book::{Table, square};

/// How values of a block become codes. A value is first kept in a form that is cheap to encode; then, when the scale is known, it is
/// encoded.
pub(crate) trait Codec: Copy {
    /// What a code stands for, as a part of the scale.
    fn decode(self, code: u8) -> f32;

    /// The form in which a value waits for the scale. `root`: its root, if it is at least 0.
    fn kept(self, value: f32, root: f32) -> f32;

    /// The divisor or factor of a scale.
    fn prepared(self, scale: f32) -> f32;

    /// The code of a kept value.
    fn nearest(self, kept: f32, prepared: f32) -> u8;

    /// The kept value as a part of the scale.
    fn part(self, kept: f32, prepared: f32) -> f32;

    /// The smallest and the largest code of a kept value.
    fn range(self, kept: f32) -> (u8, u8);

    /// One of the two codes around a kept value, at random, so that the mean of what they stand for is the value. A value beyond the
    /// codes that it may have keeps the nearest.
    #[inline(always)]
    fn at_random(self, kept: f32, prepared: f32, noise: f32) -> u8 {
        let (code, (least, most)) = (self.nearest(kept, prepared), self.range(kept));
        let (part, entry) = (self.part(kept, prepared), self.decode(code));
        let other = if part >= entry { code.saturating_add(1) } else { code.saturating_sub(1) }.clamp(least, most);
        let share = (part - entry) / (self.decode(other) - entry);
        if noise < share { other } else { code }
    }
}

/// By the table of a code book: the nearest entry of value / scale.
#[derive(Clone, Copy)]
pub(crate) struct ByTable {
    table: &'static Table,
    most: u8,
}

impl ByTable {
    pub(crate) fn new(book: CodeBook) -> Self {
        Self { table: book.table(), most: (book.entries().len() - 1) as u8 }
    }
}

impl Codec for ByTable {
    #[inline(always)]
    fn decode(self, code: u8) -> f32 {
        self.table.entries[usize::from(code)]
    }

    #[inline(always)]
    fn kept(self, value: f32, _root: f32) -> f32 {
        value
    }

    /// A block of zeros is divided by 1.
    #[inline(always)]
    fn prepared(self, scale: f32) -> f32 {
        if scale == 0.0 { 1.0 } else { scale }
    }

    #[inline(always)]
    fn nearest(self, kept: f32, prepared: f32) -> u8 {
        self.table.lookup.code(kept / prepared).max(self.range(kept).0)
    }

    #[inline(always)]
    fn part(self, kept: f32, prepared: f32) -> f32 {
        kept / prepared
    }

    #[inline(always)]
    fn range(self, kept: f32) -> (u8, u8) {
        (self.table.least & u8::from(kept > 0.0), self.most)
    }
}

/// [`CodeBook::Root`] by arithmetic: about 255 times the root of value / scale.
#[derive(Clone, Copy)]
pub(crate) struct ByRoot;

impl Codec for ByRoot {
    #[inline(always)]
    fn decode(self, code: u8) -> f32 {
        square(f32::from(code))
    }

    #[inline(always)]
    fn kept(self, _value: f32, root: f32) -> f32 {
        root
    }

    /// A block of zeros is multiplied by 0.
    #[inline(always)]
    fn prepared(self, scale: f32) -> f32 {
        if scale == 0.0 { 0.0 } else { 255.0 / scale.sqrt() }
    }

    #[inline(always)]
    fn nearest(self, kept: f32, prepared: f32) -> u8 {
        // The cast rounds down, takes what is above 255 as 255, and NaN as 0.
        ((kept * prepared + 0.5) as u8).max(self.range(kept).0)
    }

    #[inline(always)]
    fn part(self, kept: f32, prepared: f32) -> f32 {
        square(kept * prepared)
    }

    #[inline(always)]
    fn range(self, kept: f32) -> (u8, u8) {
        (u8::from(kept > 0.0), 255)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over all of an even set of noise, the mean of what codes stand for is the value.
    fn has_the_mean(codec: impl Codec, value: f32, tolerance: f64) {
        const COUNT: u32 = 1 << 12;
        let (kept, prepared) = (codec.kept(value, value.sqrt()), codec.prepared(1.0));
        let part = f64::from(codec.part(kept, prepared));
        let of = |place| codec.decode(codec.at_random(kept, prepared, (place as f32 + 0.5) / COUNT as f32));
        let mean = (0..COUNT).map(|place| f64::from(of(place))).sum::<f64>() / f64::from(COUNT);
        assert!((mean - part).abs() <= tolerance, "{value}: {mean} and {part}");
    }

    #[test]
    fn stochastic_rounding_keeps_the_mean() {
        for value in [1.0, 0.73, 0.1, 0.0123, 3e-4, 1.6e-5, 0.0] {
            // The distance of two entries is at most 0.0225 here, and the set of noise leaves 2^-12 of it.
            has_the_mean(ByTable::new(CodeBook::Dynamic), value, 1e-5);
            has_the_mean(ByTable::new(CodeBook::Dynamic), -value, 1e-5);
            has_the_mean(ByTable::new(CodeBook::DynamicUnsigned), value, 1e-5);
            has_the_mean(ByRoot, value.max(2e-5), 1e-5);
        }
        // With 4 bits up to 0.2125. Below 1/16 the linear map has nothing.
        for value in [1.0, 0.9, 0.31, 0.0625, 0.07] {
            has_the_mean(ByTable::new(CodeBook::Dynamic4), value, 1e-4);
            has_the_mean(ByTable::new(CodeBook::Linear4), value, 1e-4);
        }
    }

    #[test]
    fn values_above_zero_have_no_code_of_zero() {
        for noise in [0.0, 0.5, 0.9999] {
            for value in [1e-45f32, 1e-30, 1e-9, 1e-7] {
                let codec = ByTable::new(CodeBook::DynamicUnsigned);
                assert!(codec.at_random(value, 1.0, noise) >= 1 && codec.nearest(value, 1.0) >= 1);
                let (kept, prepared) = (ByRoot.kept(value, value.sqrt()), ByRoot.prepared(1.0));
                assert!(ByRoot.at_random(kept, prepared, noise) >= 1 && ByRoot.nearest(kept, prepared) >= 1);
            }
        }
        assert_eq!(ByTable::new(CodeBook::DynamicUnsigned).nearest(0.0, 1.0), 0);
        assert_eq!(ByRoot.nearest(0.0, ByRoot.prepared(1.0)), 0);
    }
}
