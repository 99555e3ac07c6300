//! Code books: the number in [-1, 1] that each code stands for.

use std::sync::LazyLock;

use kiln_operations::dynamic_map;

use super::lookup::Lookup;

/// The numbers in [-1, 1] that codes stand for, and the size of the blocks that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CodeBook {
    /// 8 bits, signed: seven decades, of which the larger ones have more entries. It is `create_dynamic_map(signed=True)` of bitsandbytes
    /// (Dettmers et al. 2022, section 2.1). The CPU code of bitsandbytes replaces the smallest entry by -1, and so does this book.
    Dynamic,
    /// 8 bits for values of at least 0: seven decades with twice the entries. It is `create_dynamic_map(signed=False)` of
    /// bitsandbytes.
    DynamicUnsigned,
    /// 8 bits for values of at least 0: squares, so that the roots of the values are equally far apart.
    Root,
    /// 4 bits, signed: three decades. It is the map of torchao's 4-bit optimizers for the first moment.
    Dynamic4,
    /// 4 bits for values of at least 0: 1/16, 2/16, .. 1. No entry is 0. It is the map of torchao's 4-bit optimizers for the second
    /// moment (Li et al. 2023, section 4.1).
    Linear4,
}

impl CodeBook {
    /// All code books. The index of each is its number in records.
    pub(crate) const ALL: [Self; 5] = [Self::Dynamic, Self::DynamicUnsigned, Self::Root, Self::Dynamic4, Self::Linear4];

    /// The bits of a code.
    pub fn bits(self) -> u32 {
        match self {
            Self::Dynamic | Self::DynamicUnsigned | Self::Root => 8,
            Self::Dynamic4 | Self::Linear4 => 4,
        }
    }

    /// The number of values that share a scale: 256 with 8 bits, 128 with 4.
    pub fn block(self) -> usize {
        match self.bits() {
            8 => 256,
            _ => 128,
        }
    }

    /// Whether the book has entries below 0.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::Dynamic | Self::Dynamic4)
    }

    /// The entries in rising order. A code is the index of an entry.
    pub fn entries(self) -> &'static [f32] {
        &self.table().entries[..1 << self.bits()]
    }

    /// The bytes that codes and scales of `count` values take.
    pub fn bytes(self, count: usize) -> usize {
        self.code_bytes(count).saturating_add(4 * count.div_ceil(self.block()))
    }

    /// The number of the book in records.
    pub(crate) fn number(self) -> u32 {
        Self::ALL.iter().position(|book| *book == self).unwrap_or_default() as u32
    }

    /// The book of a number in a record.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The bytes of the codes of `count` values.
    pub(crate) fn code_bytes(self, count: usize) -> usize {
        count.div_ceil(8 / self.bits() as usize)
    }

    pub(crate) fn table(self) -> &'static Table {
        &TABLES[self.number() as usize]
    }
}

/// A code book, prepared for encoding and decoding.
pub(crate) struct Table {
    /// The entries. Indices without a code have 0.
    pub(crate) entries: [f32; 256],
    /// Numbers below `thresholds[k]` have code `k` or a smaller one.
    pub(crate) thresholds: Vec<f32>,
    pub(crate) lookup: Lookup,
    /// The least code of a number above 0: the first one whose entry is not 0.
    pub(crate) least: u8,
}

/// The tables in the order of [`CodeBook::ALL`]. One that is not used takes no memory.
static TABLES: [LazyLock<Table>; 5] = [
    LazyLock::new(|| Table::of(CodeBook::Dynamic)),
    LazyLock::new(|| Table::of(CodeBook::DynamicUnsigned)),
    LazyLock::new(|| Table::of(CodeBook::Root)),
    LazyLock::new(|| Table::of(CodeBook::Dynamic4)),
    LazyLock::new(|| Table::of(CodeBook::Linear4)),
];

impl Table {
    fn of(book: CodeBook) -> Self {
        let entries = entries(book);
        let ties = match book.bits() {
            8 => Ties::Down,
            _ => Ties::Up,
        };
        let thresholds: Vec<f32> = entries.windows(2).map(|pair| threshold(pair[0], pair[1], ties)).collect();
        let lookup = Lookup::new(&thresholds);
        let least = u8::from(!book.is_signed() && entries[0] == 0.0);
        let mut padded = [0.0; 256];
        padded[..entries.len()].copy_from_slice(&entries);
        Self { entries: padded, thresholds, lookup, least }
    }
}

fn entries(book: CodeBook) -> Vec<f32> {
    match book {
        CodeBook::Dynamic => {
            let mut entries = dynamic_map(true, 7);
            entries[0] = -1.0;
            entries
        }
        CodeBook::DynamicUnsigned => dynamic_map(false, 7),
        CodeBook::Root => (0..256).map(|code| square(code as f32)).collect(),
        CodeBook::Dynamic4 => dynamic_map(true, 3),
        CodeBook::Linear4 => (1..=16).map(|code| code as f32 / 16.0).collect(),
    }
}

/// The entry of [`CodeBook::Root`]: the square of `code` / 255, with 1 for 255.
#[inline(always)]
pub(super) fn square(code: f32) -> f32 {
    code * code * (1.0 / 65025.0)
}

/// The code of a number in the middle between two entries.
#[derive(Clone, Copy)]
enum Ties {
    /// The smaller code, as in bitsandbytes.
    Down,
    /// The larger code, as in torchao.
    Up,
}

/// The smallest number that has the code of `right` and not the code of `left`. It follows the comparison of the reference
/// implementation, with its roundings.
fn threshold(left: f32, right: f32, ties: Ties) -> f32 {
    let is_right = |x: f32| match ties {
        Ties::Down => (right - x).abs() < (x - left).abs(),
        Ties::Up => x - left >= (right - left) * 0.5,
    };
    let (mut no, mut yes) = (order(left), order(right));
    while yes - no > 1 {
        let middle = no + (yes - no) / 2;
        match is_right(number(middle)) {
            true => yes = middle,
            false => no = middle,
        }
    }
    number(yes)
}

/// Maps numbers to integers of the same order. -0 and 0 are neighbours.
fn order(number: f32) -> i64 {
    let bits = i64::from(number.to_bits());
    if number.is_sign_negative() { 0x7FFF_FFFF - bits } else { bits }
}

fn number(order: i64) -> f32 {
    f32::from_bits(if order < 0 { 0x7FFF_FFFF - order } else { order } as u32)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

    use super::*;

    #[test]
    fn places_of_numbers_are_reversible_and_rise() {
        let numbers = [f32::MIN, -1.0, -f32::MIN_POSITIVE, -1e-45, -0.0, 0.0, 1e-45, 0.1, 1.0, f32::MAX];
        for pair in numbers.windows(2) {
            assert!(order(pair[0]) < order(pair[1]), "{pair:?}");
        }
        for number_ in numbers {
            assert_eq!(number(order(number_)).to_bits(), number_.to_bits());
        }
    }

    #[test]
    fn every_entry_has_its_own_code_and_thresholds_are_between_entries() {
        for book in CodeBook::ALL {
            let (entries, table) = (book.entries(), book.table());
            assert_eq!(entries.len(), 1 << book.bits());
            assert!(entries.windows(2).all(|pair| pair[0] < pair[1]), "{book:?}");
            for (code, pair) in entries.windows(2).enumerate() {
                let threshold = table.thresholds[code];
                assert!(pair[0] < threshold && threshold <= pair[1], "{book:?} {code}: {threshold}");
            }
            assert_eq!(*entries.last().unwrap(), 1.0);
            assert_eq!(entries.first().is_some_and(|first| *first == -1.0), book == CodeBook::Dynamic);
        }
    }

    #[test]
    fn bytes_of_values() {
        assert_eq!(CodeBook::Dynamic.bytes(256), 260);
        assert_eq!(CodeBook::Root.bytes(257), 265);
        assert_eq!(CodeBook::Linear4.bytes(128), 68);
        assert_eq!(CodeBook::Dynamic4.bytes(129), 73);
        assert_eq!(CodeBook::Dynamic4.bytes(0), 0);
        assert_eq!(CodeBook::Root.bytes(usize::MAX), usize::MAX);
        assert_eq!(CodeBook::Linear4.code_bytes(usize::MAX), usize::MAX / 2 + 1);
    }
}
