//! The codes of a block in a kernel. Each unit handles two neighbouring values.
//!
//! The arithmetic is that of `blocks::codec`, with the same roundings. There is one difference: values that are not finite may get other
//! codes. Their scale is not finite either, and makes them NaN in both.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use crate::blocks::CodeBook;

/// Values of a unit: two, so that it writes whole bytes of 4-bit codes.
pub(super) const LANES: usize = 2;

/// Numbers in the table of a book.
pub(super) fn table_length(book: CodeBook) -> usize {
    2 * book.entries().len()
}

/// The codes and scales of a moment.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Codes {
    pub(super) codes: Box<[u8]>,
    pub(super) scales: Box<[f32]>,
    #[cube(comptime)]
    pub(super) book: CodeBook,
}

/// The two words of a step's [`Noise`](crate::blocks::Noise).
#[derive(CubeType, CubeLaunch)]
pub(super) struct NoiseKey {
    pub(super) key: u32,
    pub(super) stream: u32,
}

/// A product that is rounded by itself. Compilers do not fuse it with a sum, as they may do with `a * b`.
#[cube]
pub(super) fn product(a: f32, b: f32) -> f32 {
    fma(a, b, -0.0f32)
}

/// Copies the table of a book from `tables` into shared memory.
#[cube]
pub(super) fn table(tables: &[f32], #[comptime] begin: usize, #[comptime] length: usize) -> Shared<[f32]> {
    let mut table = Shared::<[f32]>::new_slice(length);
    let mut index = UNIT_POS as usize;
    while index < length {
        table[index] = tables[begin + index];
        index += CUBE_DIM as usize;
    }
    table
}

/// Puts the larger of a unit's two absolute values among those of its cube, as bits. Bits have the order of the numbers, and NaN is above
/// infinity, so that no scale hides it.
#[cube]
pub(super) fn put_largest(values: &Array<f32>, largest: &mut Shared<[u32]>, #[comptime] begin: usize) {
    let mut own = 0u32;
    #[unroll]
    for lane in 0..LANES {
        own = max(own, f32::to_bits(values[lane]) & 0x7FFF_FFFFu32);
    }
    largest[begin + UNIT_POS as usize] = own;
}

/// Reduces the numbers of each moment to the largest, which is left in their first place.
#[cube]
pub(super) fn reduce_largest(largest: &mut Shared<[u32]>, #[comptime] moments: usize, #[comptime] units: usize) {
    let unit = UNIT_POS as usize;
    let levels = comptime!(units.ilog2());
    sync_cube();
    #[unroll]
    for level in 0..levels {
        let half = units >> (level as usize + 1);
        if unit < half {
            #[unroll]
            for moment in 0..moments {
                let place = moment * units + unit;
                largest[place] = max(largest[place], largest[place + half]);
            }
        }
        sync_cube();
    }
}

#[cube]
impl Codes {
    /// Decodes a unit's values. Values after the end of the parameter are 0.
    pub(super) fn decode(
        &self,
        table: &Shared<[f32]>,
        block: usize,
        place: usize,
        count: usize,
        values: &mut Array<f32>,
    ) {
        let scale = self.scales[block];
        #[unroll]
        for lane in 0..LANES {
            // The last block may be shorter.
            let last = min(place + lane, count - 1);
            let code = if comptime!(self.book.bits() == 4) {
                (u32::cast_from(self.codes[last / 2]) >> (4 - 4 * lane as u32)) & 15u32
            } else {
                u32::cast_from(self.codes[last])
            };
            let value = product(table[code as usize], scale);
            values[lane] = select(place + lane < count, value, 0.0f32);
        }
    }

    /// Encodes a unit's values. `largest` has the bits of the block's largest value.
    #[allow(clippy::too_many_arguments, reason = "a kernel has no structs of its inputs")]
    pub(super) fn encode(
        &mut self,
        table: &Shared<[f32]>,
        block: usize,
        place: usize,
        count: usize,
        values: &Array<f32>,
        largest: u32,
        noise: &NoiseKey,
        #[comptime] is_random: bool,
    ) {
        let scale = f32::from_bits(largest);
        if UNIT_POS == 0 {
            self.scales[block] = scale;
        }
        let mut codes = Array::<u32>::new(LANES);
        #[unroll]
        for lane in 0..LANES {
            let value = values[lane];
            let (part, nearest) = if comptime!(matches!(self.book, CodeBook::Root)) {
                nearest_root(value, scale)
            } else {
                nearest_entry(table, value, scale, comptime!(self.book.bits()))
            };
            let least = select(value > 0.0f32, comptime!(u32::from(self.book.table().least)).runtime(), 0u32);
            let nearest = max(nearest, least);
            codes[lane] = if comptime!(is_random) {
                let number = noise_at((place + lane) as u32, noise);
                at_random(table, part, nearest, least, number, comptime!(self.book.entries().len() as u32 - 1))
            } else {
                nearest
            };
        }
        if comptime!(self.book.bits() == 4) {
            if place < count {
                let second = select(place + 1 < count, codes[1], 0u32);
                self.codes[place / 2] = u8::cast_from((codes[0] << 4u32) | second);
            }
        } else {
            #[unroll]
            for lane in 0..LANES {
                if place + lane < count {
                    self.codes[place + lane] = u8::cast_from(codes[lane]);
                }
            }
        }
    }
}

/// Returns a value as a part of the scale, and the code of the nearest entry. The code is the number of thresholds that are not above the
/// part, by a binary search. A block of zeros is divided by 1.
#[cube]
fn nearest_entry(table: &Shared<[f32]>, value: f32, scale: f32, #[comptime] bits: u32) -> (f32, u32) {
    let entries = comptime!(1usize << bits);
    let part = value / select(scale == 0.0f32, 1.0f32, scale);
    let mut code = 0u32;
    #[unroll]
    for bit in 0..bits {
        let half = comptime!(1u32 << (bits - 1)) >> bit;
        let threshold = table[entries + (code + half - 1) as usize];
        code += select(part >= threshold, half, 0u32);
    }
    (part, code)
}

/// Returns a value as a part of the scale, and its nearest code in [`CodeBook::Root`], whose codes are rounded roots of the parts. A
/// block of zeros is multiplied by 0.
#[cube]
fn nearest_root(value: f32, scale: f32) -> (f32, u32) {
    let factor = select(scale == 0.0f32, 0.0f32, 255.0f32 / scale.sqrt());
    let place = product(value.sqrt(), factor);
    let part = product(product(place, place), 1.0f32 / 65025.0f32);
    (part, u32::cast_from(min(place + 0.5f32, 255.0f32)))
}

/// Chooses one of the two codes around a part of the scale, as `blocks::codec` does.
#[cube]
fn at_random(table: &Shared<[f32]>, part: f32, nearest: u32, least: u32, noise: f32, #[comptime] most: u32) -> u32 {
    let at = table[nearest as usize];
    // A code outside of the book at either end is replaced by the last one.
    let above = min(nearest + 1, most);
    let below = max(nearest, least + 1) - 1;
    let other = select(part >= at, above, below);
    let share = (part - at) / (table[other as usize] - at);
    select(noise < share, other, nearest)
}

/// The number of [`Noise::at`](crate::blocks::Noise::at).
#[cube]
fn noise_at(index: u32, noise: &NoiseKey) -> f32 {
    f32::cast_from(mixed(mixed(index ^ noise.key) + noise.stream) >> 8u32) * (1.0f32 / 16_777_216.0f32)
}

#[cube]
fn mixed(bits: u32) -> u32 {
    let first = (bits ^ (bits >> 16u32)) * 0x7FEB_352Du32;
    let second = (first ^ (first >> 15u32)) * 0x846C_A68Bu32;
    second ^ (second >> 16u32)
}
