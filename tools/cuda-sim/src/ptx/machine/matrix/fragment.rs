//! `wmma.load` and `wmma.store`: whole matrices with a leading dimension.

use std::marker::PhantomData;

use super::super::lanes::{Body, handler};
use super::super::locate::{Touch, locate, races};
use super::super::state::{Block, Handler, LANES, Lane, Op, Warp};
use super::together::{by_all, together};

/// How the elements of a matrix lie in the registers of a fragment.
trait Registers<T: Lane> {
    /// Registers of a matrix of `count` elements.
    fn count(count: usize) -> usize;
    /// Register `j` of the matrix whose elements are `all`, row after row.
    fn gather(all: &[T], j: usize) -> [u32; LANES];
    /// Puts register `j` into the matrix.
    fn scatter(register: &[u32; LANES], j: usize, all: &mut [T]);
}

/// One element a register.
struct Words;
/// Two neighbours a register.
struct Neighbours;
/// Two elements a register that lie 32 apart.
struct Apart;

impl Registers<u32> for Words {
    fn count(count: usize) -> usize {
        count / LANES
    }
    #[inline(always)]
    fn gather(all: &[u32], j: usize) -> [u32; LANES] {
        std::array::from_fn(|l| all[LANES * j + l])
    }
    #[inline(always)]
    fn scatter(register: &[u32; LANES], j: usize, all: &mut [u32]) {
        all[LANES * j..][..LANES].copy_from_slice(register);
    }
}

impl Registers<u16> for Neighbours {
    fn count(count: usize) -> usize {
        count / (2 * LANES)
    }
    #[inline(always)]
    fn gather(all: &[u16], j: usize) -> [u32; LANES] {
        let part = &all[2 * LANES * j..][..2 * LANES];
        std::array::from_fn(|l| u32::from(part[2 * l]) | u32::from(part[2 * l + 1]) << 16)
    }
    #[inline(always)]
    fn scatter(register: &[u32; LANES], j: usize, all: &mut [u16]) {
        let part = &mut all[2 * LANES * j..][..2 * LANES];
        for l in 0..LANES {
            part[2 * l] = register[l] as u16;
            part[2 * l + 1] = (register[l] >> 16) as u16;
        }
    }
}

impl Registers<u16> for Apart {
    fn count(count: usize) -> usize {
        count / (2 * LANES)
    }
    #[inline(always)]
    fn gather(all: &[u16], j: usize) -> [u32; LANES] {
        let part = &all[2 * LANES * j..][..2 * LANES];
        std::array::from_fn(|l| u32::from(part[l]) | u32::from(part[LANES + l]) << 16)
    }
    #[inline(always)]
    fn scatter(register: &[u32; LANES], j: usize, all: &mut [u16]) {
        let part = &mut all[2 * LANES * j..][..2 * LANES];
        for l in 0..LANES {
            part[l] = register[l] as u16;
            part[LANES + l] = (register[l] >> 16) as u16;
        }
    }
}

/// Host address of a matrix and its leading dimension in elements.
#[inline(always)]
unsafe fn base<T: Lane, const OUTER: usize, const INNER: usize>(
    warp: &mut Warp,
    block: &mut Block<'_>,
    op: &Op,
    touch: Touch,
) -> Option<(u64, usize)> {
    if !together(warp, block) {
        return None;
    }
    let lane = warp.mask.trailing_zeros() as usize & 31;
    // SAFETY: lowering gave a 64-bit address in `a`, a 32-bit leading dimension in `b` and a place of this kernel; all
    // lanes hold the same values, so the first one's count.
    unsafe {
        let stride = warp.get::<u32>(op.b)[lane] as usize;
        let bytes = ((OUTER - 1) * stride + INNER) * size_of::<T>();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // What lies between the rows belongs to others.
        let watching = block.races.take();
        let located = locate(warp, block, op, op.a, 1 << lane, (bytes, size_of::<T>() as u32), touch);
        block.races = watching;
        let host = located?[lane];
        let (row, inner) = ((stride * size_of::<T>()) as u64, (INNER * size_of::<T>()) as u64);
        let watched = block.races.is_some();
        let raced = watched
            && by_all(block, |block| {
                (0..OUTER as u64).any(|at| races(warp, block, op, (&[host + at * row; LANES], 1 << lane), inner, touch))
            });
        (!raced).then_some((host, stride))
    }
}

/// `wmma.load` of an `R` x `C` matrix; the list has how many registers follow, and the registers.
struct Load<L, T, const R: usize, const C: usize, const BY_COLUMN: bool>(PhantomData<(L, T)>);
impl<L: Registers<T>, T: Lane, const R: usize, const C: usize, const BY_COLUMN: bool> Body
    for Load<L, T, R, C, BY_COLUMN>
{
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        let mut matrix = [[T::default(); C]; R];
        // SAFETY: as in `base`, which checked the extent of the matrix; lowering gave the list.
        unsafe {
            if BY_COLUMN {
                let Some((host, stride)) = base::<T, C, R>(warp, block, op, Touch::Read) else { return true };
                for c in 0..C {
                    let column = (host as *const T).add(c * stride).cast::<[T; R]>().read();
                    for r in 0..R {
                        matrix[r][c] = column[r];
                    }
                }
            } else {
                let Some((host, stride)) = base::<T, R, C>(warp, block, op, Touch::Read) else { return true };
                for (r, row) in matrix.iter_mut().enumerate() {
                    *row = (host as *const T).add(r * stride).cast::<[T; C]>().read();
                }
            }
            let lists = block.lists;
            let list = &lists[op.d as usize..];
            for (j, &slot) in list[1..].iter().take(list[0] as usize).enumerate() {
                // registers that the matrix does not need hold copies
                let register = L::gather(matrix.as_flattened(), j % L::count(R * C));
                warp.set(slot, &register);
            }
        }
        false
    }
}

/// `wmma.store` of an `R` x `C` matrix; the list has how many registers follow, and the registers.
struct Store<L, T, const R: usize, const C: usize, const BY_COLUMN: bool>(PhantomData<(L, T)>);
impl<L: Registers<T>, T: Lane, const R: usize, const C: usize, const BY_COLUMN: bool> Body
    for Store<L, T, R, C, BY_COLUMN>
{
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        let mut matrix = [[T::default(); C]; R];
        // SAFETY: as for `Load`.
        unsafe {
            let list = &block.lists[op.d as usize + 1..];
            for j in 0..L::count(R * C) {
                L::scatter(warp.get::<u32>(list[j]), j, matrix.as_flattened_mut());
            }
            if BY_COLUMN {
                let Some((host, stride)) = base::<T, C, R>(warp, block, op, Touch::Write) else { return true };
                for c in 0..C {
                    let column: [T; R] = std::array::from_fn(|r| matrix[r][c]);
                    (host as *mut T).add(c * stride).cast::<[T; R]>().write(column);
                }
            } else {
                let Some((host, stride)) = base::<T, R, C>(warp, block, op, Touch::Write) else { return true };
                for (r, row) in matrix.iter().enumerate() {
                    (host as *mut T).add(r * stride).cast::<[T; C]>().write(*row);
                }
            }
        }
        false
    }
}

/// The contents of a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub rows: u32,
    pub columns: u32,
    /// Elements of a column follow each other in memory instead of those of a row.
    pub by_column: bool,
    /// Elements have 4 bytes instead of 2.
    pub wide: bool,
    /// It is an accumulator.
    pub sum: bool,
}

macro_rules! by_shape {
    ($body:ident, $fragment:expr, $registers:ty, $element:ty) => {
        match ($fragment.rows, $fragment.columns, $fragment.by_column) {
            (16, 16, false) => Some(handler::<$body<$registers, $element, 16, 16, false>>()),
            (16, 16, true) => Some(handler::<$body<$registers, $element, 16, 16, true>>()),
            (16, 8, false) => Some(handler::<$body<$registers, $element, 16, 8, false>>()),
            (16, 8, true) => Some(handler::<$body<$registers, $element, 16, 8, true>>()),
            (8, 16, false) => Some(handler::<$body<$registers, $element, 8, 16, false>>()),
            (8, 16, true) => Some(handler::<$body<$registers, $element, 8, 16, true>>()),
            (32, 16, false) => Some(handler::<$body<$registers, $element, 32, 16, false>>()),
            (32, 16, true) => Some(handler::<$body<$registers, $element, 32, 16, true>>()),
            (16, 32, false) => Some(handler::<$body<$registers, $element, 16, 32, false>>()),
            (16, 32, true) => Some(handler::<$body<$registers, $element, 16, 32, true>>()),
            (32, 8, false) => Some(handler::<$body<$registers, $element, 32, 8, false>>()),
            (32, 8, true) => Some(handler::<$body<$registers, $element, 32, 8, true>>()),
            (8, 32, false) => Some(handler::<$body<$registers, $element, 8, 32, false>>()),
            (8, 32, true) => Some(handler::<$body<$registers, $element, 8, 32, true>>()),
            _ => None,
        }
    };
}

macro_rules! by_kind {
    ($body:ident, $fragment:expr) => {
        match ($fragment.wide, $fragment.sum) {
            (true, _) => by_shape!($body, $fragment, Words, u32),
            (false, false) => by_shape!($body, $fragment, Neighbours, u16),
            (false, true) => by_shape!($body, $fragment, Apart, u16),
        }
    };
}

/// Handler of `wmma.load`.
pub(crate) fn load(fragment: Fragment) -> Option<Handler> {
    by_kind!(Load, fragment)
}

/// Handler of `wmma.store`.
pub(crate) fn store(fragment: Fragment) -> Option<Handler> {
    by_kind!(Store, fragment)
}
