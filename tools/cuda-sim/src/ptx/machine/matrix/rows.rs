//! `ldmatrix` and `stmatrix`: 8 x 8 tiles of 16-bit elements whose rows lie where the lanes point.

use super::super::lanes::{Body, handler};
use super::super::locate::{Touch, locate};
use super::super::state::{Block, Handler, LANES, Lanes, Op, Warp};
use super::together::{by_all, together};

/// The rows of each tile: lanes `8 t .. 8 t + 8` give those of tile `t`.
#[inline(always)]
unsafe fn addresses<const T: usize>(
    warp: &mut Warp,
    block: &mut Block<'_>,
    op: &Op,
    touch: Touch,
) -> Option<Lanes<u64>> {
    if !together(warp, block) {
        return None;
    }
    let givers = if T == 4 { !0 } else { (1 << (8 * T)) - 1 };
    // SAFETY: the caller's promise is that of `Handler`; lowering gave a 64-bit address and a place.
    unsafe { by_all(block, |block| locate(warp, block, op, op.a, givers, (16, 16), touch)) }
}

/// `ldmatrix` of `T` tiles.
struct Load<const T: usize, const TRANSPOSED: bool>;
impl<const T: usize, const TRANSPOSED: bool> Body for Load<T, TRANSPOSED> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: as above; `locate` checked the 16 bytes of each row.
        unsafe {
            let Some(hosts) = addresses::<T>(warp, block, op, Touch::Read) else { return true };
            for t in 0..T {
                let mut out = [0; LANES];
                if TRANSPOSED {
                    let mut tile = [[0_u16; 8]; 8];
                    for row in 0..8 {
                        tile[row] = (hosts[8 * t + row] as *const [u16; 8]).read();
                    }
                    for l in 0..LANES {
                        let (g, q) = (l / 4, l % 4 * 2);
                        out[l] = u32::from(tile[q][g]) | u32::from(tile[q + 1][g]) << 16;
                    }
                } else {
                    for row in 0..8 {
                        out[4 * row..4 * row + 4].copy_from_slice(&(hosts[8 * t + row] as *const [u32; 4]).read());
                    }
                }
                let target = block.lists[op.d as usize + t];
                warp.set(target, &out);
            }
        }
        false
    }
}

/// `stmatrix` of `T` tiles.
struct Store<const T: usize, const TRANSPOSED: bool>;
impl<const T: usize, const TRANSPOSED: bool> Body for Store<T, TRANSPOSED> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: as above.
        unsafe {
            let Some(hosts) = addresses::<T>(warp, block, op, Touch::Write) else { return true };
            for t in 0..T {
                let from = warp.get::<u32>(block.lists[op.d as usize + t]);
                if TRANSPOSED {
                    let mut tile = [[0_u16; 8]; 8];
                    for l in 0..LANES {
                        let (g, q) = (l / 4, l % 4 * 2);
                        (tile[q][g], tile[q + 1][g]) = (from[l] as u16, (from[l] >> 16) as u16);
                    }
                    for row in 0..8 {
                        (hosts[8 * t + row] as *mut [u16; 8]).write(tile[row]);
                    }
                } else {
                    for row in 0..8 {
                        let words = [from[4 * row], from[4 * row + 1], from[4 * row + 2], from[4 * row + 3]];
                        (hosts[8 * t + row] as *mut [u32; 4]).write(words);
                    }
                }
            }
        }
        false
    }
}

macro_rules! tiles {
    ($body:ident, $count:expr, $transposed:expr) => {
        Some(match ($count, $transposed) {
            (1, false) => handler::<$body<1, false>>(),
            (2, false) => handler::<$body<2, false>>(),
            (4, false) => handler::<$body<4, false>>(),
            (1, true) => handler::<$body<1, true>>(),
            (2, true) => handler::<$body<2, true>>(),
            (4, true) => handler::<$body<4, true>>(),
            _ => return None,
        })
    };
}

/// Handler of `ldmatrix` of 1, 2 or 4 tiles.
pub(crate) fn load(count: usize, transposed: bool) -> Option<Handler> {
    tiles!(Load, count, transposed)
}

/// Handler of `stmatrix` of 1, 2 or 4 tiles.
pub(crate) fn store(count: usize, transposed: bool) -> Option<Handler> {
    tiles!(Store, count, transposed)
}
