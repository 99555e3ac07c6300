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
