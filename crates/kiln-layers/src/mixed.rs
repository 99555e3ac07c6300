//! Random numbers in CubeCL: [`mixed`](crate::composed::mixed) of one word.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

/// Mixes the bits of a number.
#[cube]
pub(crate) fn mixed(number: u32) -> u32 {
    let number = (number ^ (number >> 16)) * 0x21F0_AAADu32;
    let number = (number ^ (number >> 15)) * 0x735A_2D97u32;
    number ^ (number >> 15)
}
