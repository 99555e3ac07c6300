//! Encodes the values of a block as codes, and decodes them.
//!
//! Each loop is a function of its own, with slices and tables as arguments. The compiler then knows that they do not overlap, and uses
//! vector instructions.

use super::book::{CodeBook, square};
use super::lookup::{Key, SIZE};
use super::noise::Noise;
use kiln_operations::simd;

/// Writes the values that the codes of a block stand for.
pub(crate) fn decode(book: CodeBook, codes: &[u8], scale: f32, values: &mut [f32]) {
    match book {
        CodeBook::Root => decode_root(codes, scale, values),
        _ => decode_table(codes, &book.table().entries, scale, values),
    }
}

/// Writes the codes of a block, and returns its scale. The scale is not finite if a value is not. With `noise`, values are rounded at
/// random; it comes with the index of the first value.
pub(crate) fn encode(book: CodeBook, values: &[f32], codes: &mut [u8], noise: Option<(Noise, u32)>) -> f32 {
    let scale = f32::from_bits(largest(values));
    let table = book.table();
    let range = (i32::from(table.least), book.entries().len() as i32 - 1);
    match book {
        CodeBook::Root => {
            let factor = root_factor(scale);
            encode_root(values, factor, codes);
            if let Some((noise, first)) = noise {
                reround_root(values, factor, &table.entries, range, noise, first, codes);
            }
        }
        _ => {
            let divisor = table_divisor(scale);
            encode_table(values, divisor, &table.lookup.ranges, table.lookup.key, table.least, codes);
            if let Some((noise, first)) = noise {
                reround_table(values, divisor, &table.entries, range, noise, first, codes);
            }
        }
    }
    scale
}

/// The divisor of a block's values: the scale, or 1 for a block of zeros.
pub(crate) fn table_divisor(scale: f32) -> f32 {
    if scale == 0.0 { 1.0 } else { scale }
}

/// The factor of the roots of a block's values, or 0 for a block of zeros.
pub(crate) fn root_factor(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 255.0 / scale.sqrt() }
}

simd! {
    /// The bits of the largest absolute value. Bits have the order of the numbers. NaN is above infinity, so that no scale hides it.
    fn largest(values: &[f32]) -> u32 {
        values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7FFF_FFFF))
    }
}

simd! {
    fn decode_table(codes: &[u8], entries: &[f32; 256], scale: f32, values: &mut [f32]) {
        for (value, code) in values.iter_mut().zip(codes) {
            *value = entries[usize::from(*code)] * scale;
        }
    }
}

simd! {
    fn decode_root(codes: &[u8], scale: f32, values: &mut [f32]) {
        for (value, code) in values.iter_mut().zip(codes) {
            *value = square(f32::from(*code)) * scale;
        }
    }
}

simd! {
    /// The codes of the entries nearest to value / divisor. Values above 0 get at least the code `least`.
    fn encode_table(values: &[f32], divisor: f32, ranges: &[u32; SIZE], key: Key, least: u8, codes: &mut [u8]) {
        for (code, value) in codes.iter_mut().zip(values) {
            *code = key.code(ranges, value / divisor).max(least & u8::from(*value > 0.0));
        }
    }
}

simd! {
    /// The codes nearest to the roots of values, at least 1 for values above 0.
    fn encode_root(values: &[f32], factor: f32, codes: &mut [u8]) {
        for (code, value) in codes.iter_mut().zip(values) {
            // The cast rounds down. It turns values above 255 into 255, and NaN into 0.
            *code = ((value.sqrt() * factor + 0.5) as u8).max(u8::from(*value > 0.0));
        }
    }
}

simd! {
    /// Moves nearest codes to the other side of their values, at random.
    fn reround_table(
        values: &[f32],
        divisor: f32,
        entries: &[f32; 256],
        range: (i32, i32),
        noise: Noise,
        first: u32,
        codes: &mut [u8],
    ) {
        for (index, (code, value)) in codes.iter_mut().zip(values).enumerate() {
            let number = noise.at(first.wrapping_add(index as u32));
            *code = at_random(*code, *value, value / divisor, entries, range, number);
        }
    }
}

simd! {
    fn reround_root(
        values: &[f32],
        factor: f32,
        entries: &[f32; 256],
        range: (i32, i32),
        noise: Noise,
        first: u32,
        codes: &mut [u8],
    ) {
        for (index, (code, value)) in codes.iter_mut().zip(values).enumerate() {
            let number = noise.at(first.wrapping_add(index as u32));
            *code = at_random(*code, *value, square(value.sqrt() * factor), entries, range, number);
        }
    }
}

/// Chooses one of the two codes around a part of the scale, so that the mean of their entries over all noise is the part. A part outside
/// of the allowed codes keeps the nearest code.
#[inline(always)]
fn at_random(nearest: u8, value: f32, part: f32, entries: &[f32; 256], (least, most): (i32, i32), noise: f32) -> u8 {
    let (code, at) = (i32::from(nearest), entries[usize::from(nearest)]);
    let least = if value > 0.0 { least } else { 0 };
    let other = code.wrapping_add(if part >= at { 1 } else { -1 }).max(least).min(most) as u8;
    let share = (part - at) / (entries[usize::from(other)] - at);
    if noise < share { other } else { nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the mean of the decoded values over many numbers of noise is the value.
    fn has_the_mean(book: CodeBook, value: f32) {
        const COUNT: usize = 1 << 16;
        let (mut codes, mut back) = ([0; COUNT], [0.0; COUNT]);
        let mut values = [value; COUNT];
        values[0] = 1.0;
        let scale = encode(book, &values, &mut codes, Some((Noise::new(1, 2), 0)));
        decode(book, &codes, scale, &mut back);
        let mean = back[1..].iter().map(|back| f64::from(*back)).sum::<f64>() / (COUNT - 1) as f64;
        let around = back[1..].iter().fold((1f32, -1f32), |(low, high), back| (low.min(*back), high.max(*back)));
        // Five standard errors of a number that is one of two values.
        let bound = 2.5 * f64::from(around.1 - around.0) / (COUNT as f64).sqrt() + 1e-7;
        assert!((mean - f64::from(value)).abs() <= bound, "{book:?}, {value}: {mean}, {around:?}");
    }

    #[test]
    fn stochastic_rounding_keeps_the_mean() {
        for value in [1.0, 0.73, 0.1, 0.0123, 3e-4, 2e-5, 0.0] {
            for book in [CodeBook::Dynamic, CodeBook::DynamicUnsigned, CodeBook::Root] {
                has_the_mean(book, value);
            }
            has_the_mean(CodeBook::Dynamic, -value);
        }
        // The linear map has no entry below 1/16.
        for value in [1.0, 0.9, 0.31, 0.0625, 0.07] {
            has_the_mean(CodeBook::Dynamic4, value);
            has_the_mean(CodeBook::Linear4, value);
        }
        has_the_mean(CodeBook::Dynamic4, -0.5);
    }

    #[test]
    fn values_above_zero_have_no_code_of_zero() {
        for book in [CodeBook::DynamicUnsigned, CodeBook::Root] {
            for noise in [None, Some((Noise::new(1, 2), 0))] {
                let mut codes = [9; 6];
                encode(book, &[1.0, 1e-45, 1e-30, 1e-9, 1e-7, 0.0], &mut codes, noise);
                assert!(codes[1..5].iter().all(|code| *code >= 1), "{book:?}: {codes:?}");
                assert_eq!(codes[5], 0);
            }
        }
    }
}
