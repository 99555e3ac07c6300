//! The code of a number without a search: a table over the leading bits of a float.

/// Entries of the table, for numbers from 0 on and for numbers below 0.
pub(super) const SIZE: usize = 8192;

/// The codes of numbers in [-1, 1], found by the sign, the exponent and the first bits of the mantissa.
///
/// These bits name a range of numbers. A range has at most one threshold, so that one comparison decides between two neighbouring
/// codes.
pub(crate) struct Lookup {
    /// For each range: the code on the side of 0, and the place where the next code begins, as the further bits of the float (`<< 8`).
    pub(super) ranges: [u32; SIZE],
    pub(super) key: Key,
}

/// The bits of a float that name its range.
#[derive(Clone, Copy)]
pub(super) struct Key {
    /// Number of bits of a float that do not belong to the name of its range.
    shift: u32,
    /// A mask of these bits.
    further: u32,
    /// The names of the first range, which is the range of 0, and of the last range.
    first: u32,
    last: u32,
    /// The number of ranges of each sign.
    count: u32,
}

impl Key {
    /// The code of a number in [-1, 1]. Any other number, and NaN, also gets one of the book's codes.
    #[inline(always)]
    pub(super) fn code(self, ranges: &[u32; SIZE], number: f32) -> u8 {
        let bits = number.to_bits();
        let (magnitude, negative) = (bits & 0x7FFF_FFFF, bits >> 31);
        let range = magnitude.wrapping_shr(self.shift).clamp(self.first, self.last).wrapping_sub(self.first);
        let entry = ranges[range.wrapping_add(negative.wrapping_mul(self.count)) as usize & (SIZE - 1)];
        let beyond = u32::from(magnitude & self.further >= entry >> 8);
        // Away from 0, codes rise for positive numbers and fall for negative numbers.
        let step = (beyond ^ negative.wrapping_neg()).wrapping_add(negative);
        (entry & 0xFF).wrapping_add(step) as u8
    }
}

impl Lookup {
    /// Builds the table of rising `thresholds`. The code of a number is the number of thresholds that are not above it.
    pub(crate) fn new(thresholds: &[f32]) -> Self {
        let least = thresholds.iter().filter(|threshold| **threshold != 0.0).map(|threshold| threshold.abs());
        let least = least.fold(1.0, f32::min);
        // Fewer ranges are better for the cache, so the first number of bits is taken at which each range has at most one threshold.
        let mut tables = (12..24).rev().map(|shift| Self::with_shift(thresholds, least, shift));
        tables.find_map(|table| table).unwrap_or_else(|| unreachable!("the code books of the crate are coarse enough"))
    }

    fn with_shift(thresholds: &[f32], least: f32, shift: u32) -> Option<Self> {
        let first = (least.to_bits() >> shift) - 1;
        let count = (1f32.to_bits() >> shift) - first + 1;
        if 2 * count as usize > SIZE {
            return None;
        }
        let code = |number: f32| thresholds.partition_point(|threshold| *threshold <= number) as u32;
        let mut ranges = [0; SIZE];
        for negative in [false, true] {
            let signed = |magnitude: u32| f32::from_bits(magnitude | u32::from(negative) << 31);
            for range in 0..count {
                let begin = match range {
                    0 => 0,
                    range => (first + range) << shift,
                };
                let end = (first + range + 1) << shift;
                let (from, to) = (code(signed(begin)), code(signed(end - 1)));
                let steps = from.abs_diff(to);
                // In the range of 0, the further bits do not distinguish numbers.
                if steps > u32::from(range > 0) {
                    return None;
                }
                let within = 1u32 << shift;
                let next = match steps {
                    0 => within,
                    _ => first_where(within, |low| code(signed(begin | low)) != from),
                };
                let index = range + u32::from(negative) * count;
                ranges[index as usize] = next << 8 | from;
            }
        }
        let key = Key { shift, further: (1 << shift) - 1, first, last: first + count - 1, count };
        Some(Self { ranges, key })
    }
}

/// The first number below `end` for which `holds`, which then holds for all after it; `end` if there is none.
fn first_where(end: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let mut left = 0..end;
    while !left.is_empty() {
        let middle = left.start.midpoint(left.end);
        if holds(middle) { left.end = middle } else { left.start = middle + 1 }
    }
    left.start
}

#[cfg(test)]
mod tests {
    use super::super::CodeBook;

    /// Checks every threshold, its neighbours, and numbers between thresholds.
    #[test]
    fn codes_are_those_of_a_search() {
        for book in CodeBook::ALL {
            let table = book.table();
            let search = |x: f32| table.thresholds.partition_point(|threshold| *threshold <= x) as u8;
            let mut numbers = vec![0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e-9, -1e-9, 1.0, -1.0];
            for threshold in &table.thresholds {
                numbers.extend([threshold.next_down(), *threshold, threshold.next_up()]);
            }
            numbers.extend((0..20_000).map(|i| (i as f32 / 10_000.0 - 1.0) * 2f32.powi(-(i % 31))));
            for number in numbers {
                if number.abs() <= 1.0 && (book.is_signed() || number >= 0.0) {
                    assert_eq!(
                        table.lookup.key.code(&table.lookup.ranges, number),
                        search(number),
                        "{book:?} {number:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn numbers_out_of_range_have_a_code() {
        for book in CodeBook::ALL {
            for number in [2.0, -3.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let code = usize::from(book.table().lookup.key.code(&book.table().lookup.ranges, number));
                assert!(code < book.entries().len(), "{book:?} {number}: {code}");
            }
        }
    }
}
