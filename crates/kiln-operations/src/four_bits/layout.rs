//! The layout of codes and scales.

/// Values of a block, which share a scale.
pub const BLOCK: usize = 64;

/// Blocks of a group, whose scales share a scale.
pub const GROUP: usize = 256;

/// Codes in a word of 32 bits.
pub const OF_WORD: usize = 8;

/// The places of the codes in a word: the high bits of a byte come first.
pub(super) const SHIFTS: [usize; OF_WORD] = [4, 0, 12, 8, 20, 16, 28, 24];

/// Levels of codes, the first among the levels of a weight.
pub const LEVELS: usize = 16;

/// Levels of the codes of scales, behind those of codes.
const SCALES: usize = 256;

/// The place of the offset of scales among the levels of a weight. The scales of groups are behind it.
pub const OFFSET: usize = LEVELS + SCALES;

/// The lengths of the tensors of a weight with `values` values: levels, words of codes, words of scales.
pub fn four_bit_lengths(values: usize) -> [usize; 3] {
    let blocks = values.div_ceil(BLOCK);
    [OFFSET + 1 + blocks.div_ceil(GROUP), blocks * BLOCK / OF_WORD, blocks.div_ceil(4)]
}
