//! `mma.sync`: `d = a b + c` with products of 16-bit or TF32 numbers summed in f32, and what `wmma.mma` shares with it.

use std::marker::PhantomData;

use super::super::format::{Bf16, F16, Half, read_tf32};
use super::super::lanes::{Body, handler};
use super::super::state::{Block, Handler, LANES, Op, Warp};
use super::together::together;
use crate::ptx::text::Type;

/// Eight rows of eight columns.
type Tile = [[f32; 8]; 8];

/// `c += a b`, four rows at a time so that the sums stay in registers.
#[inline(always)]
pub(super) fn accumulate<const M: usize, const N: usize, const K: usize>(
    a: &[[f32; K]; M],
    b: &[[f32; N]; K],
    c: &mut [[f32; N]; M],
) {
    for m in (0..M).step_by(4) {
        for n in (0..N).step_by(8) {
            let mut sums: [[f32; 8]; 4] = std::array::from_fn(|i| std::array::from_fn(|j| c[m + i][n + j]));
            for k in 0..K {
                for i in 0..4 {
                    for j in 0..8 {
                        sums[i][j] = a[m + i][k].mul_add(b[k][n + j], sums[i][j]);
                    }
                }
            }
            for i in 0..4 {
                c[m + i][n..n + 8].copy_from_slice(&sums[i]);
            }
        }
    }
}

/// The accumulators of an `mma`: eight rows of them in so many registers.
trait Sums {
    const REGISTERS: usize;
    /// Where column `n` of the product is kept while it is summed.
    fn column(n: usize) -> usize;
    /// Eight rows, their columns in the order of [`Sums::column`].
    ///
    /// # Safety
    /// `slots` must hold `REGISTERS` 32-bit registers of the warp's kernel.
    unsafe fn get<const WIDE: bool>(warp: &Warp, slots: &[u32]) -> Tile;
    /// Writes the registers of eight rows.
    ///
    /// # Safety
    /// As for [`Sums::get`].
    unsafe fn put<const WIDE: bool>(warp: &mut Warp, slots: &[u32], tile: &Tile);
}

/// f32 accumulators: the even columns in one register and the odd ones in the next, kept in that order.
pub(super) struct Single;
impl Sums for Single {
    const REGISTERS: usize = 2;
    #[inline(always)]
    fn column(n: usize) -> usize {
        n / 2 + n % 2 * 4
    }
    #[inline(always)]
    unsafe fn get<const WIDE: bool>(warp: &Warp, slots: &[u32]) -> Tile {
        // SAFETY: the caller's promise.
        let (even, odd) = unsafe { (warp.get::<f32>(slots[0]), warp.get::<f32>(slots[1])) };
        let mut tile = [[0.0; 8]; 8];
        for g in 0..8 {
            tile[g][..4].copy_from_slice(&even[4 * g..4 * g + 4]);
            tile[g][4..].copy_from_slice(&odd[4 * g..4 * g + 4]);
        }
        tile
    }
    #[inline(always)]
    unsafe fn put<const WIDE: bool>(warp: &mut Warp, slots: &[u32], tile: &Tile) {
        let (mut even, mut odd) = ([0.0; LANES], [0.0; LANES]);
        for g in 0..8 {
            even[4 * g..4 * g + 4].copy_from_slice(&tile[g][..4]);
            odd[4 * g..4 * g + 4].copy_from_slice(&tile[g][4..]);
        }
        // SAFETY: the caller's promise.
        unsafe {
            warp.set(slots[0], &even);
            warp.set(slots[1], &odd);
        }
    }
}

/// 16-bit accumulators: neighbours in the halves of one register.
pub(super) struct Halves<H>(PhantomData<H>);
impl<H: Half> Sums for Halves<H> {
    const REGISTERS: usize = 1;
    #[inline(always)]
    fn column(n: usize) -> usize {
        n
    }
    #[inline(always)]
    unsafe fn get<const WIDE: bool>(warp: &Warp, slots: &[u32]) -> Tile {
        // SAFETY: the caller's promise.
        unsafe { rows::<H, WIDE>(warp, slots[0]) }
    }
    #[inline(always)]
    unsafe fn put<const WIDE: bool>(warp: &mut Warp, slots: &[u32], tile: &Tile) {
        let mut register = [0; LANES];
        for g in 0..8 {
            let halves = H::narrow_all::<WIDE, 8>(&tile[g]);
            for q in 0..4 {
                register[4 * g + q] = u32::from(halves[2 * q]) | u32::from(halves[2 * q + 1]) << 16;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { warp.set(slots[0], &register) };
    }
}

/// A register of 16-bit numbers as eight rows of eight.
#[inline(always)]
unsafe fn rows<H: Half, const WIDE: bool>(warp: &Warp, slot: u32) -> Tile {
    // SAFETY: the caller gives a 32-bit register.
    let all = H::widen_all::<WIDE, 64>(unsafe { warp.halves(slot) });
    std::array::from_fn(|g| std::array::from_fn(|j| all[8 * g + j]))
}

/// `mma.sync` with 16-bit operands; the list has the registers of d, a, b and c.
struct HalfMma<H, C, const K: usize>(PhantomData<(H, C)>);
impl<H: Half, C: Sums, const K: usize> Body for HalfMma<H, C, K> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        if !together(warp, block) {
            return true;
        }
        let (in_a, in_b, in_c) = (K / 4, K / 8, 2 * C::REGISTERS);
        let list = &block.lists[op.d as usize..];
        let mut a = [[0.0; K]; 16];
        let mut b = [[0.0; 8]; K];
        // SAFETY: lowering gave the registers of the whole list.
        unsafe {
            for j in 0..in_a {
                // the first two registers are the rows 0 and 8 of the first eight columns
                let tile = rows::<H, WIDE>(warp, list[in_c + j]);
                for g in 0..8 {
                    a[j % 2 * 8 + g][j / 2 * 8..][..8].copy_from_slice(&tile[g]);
                }
            }
            for j in 0..in_b {
                let columns = rows::<H, WIDE>(warp, list[in_c + in_a + j]);
                for k in 0..8 {
                    for n in 0..8 {
                        b[8 * j + k][C::column(n)] = columns[n][k];
                    }
                }
            }
            sum::<C, K, WIDE>(warp, list, in_c + in_a + in_b, &a, &b);
        }
        false
    }
}

/// Adds the product to the accumulators, which stand in the list from `from` on, and writes the result to its start.
#[inline(always)]
unsafe fn sum<C: Sums, const K: usize, const WIDE: bool>(
    warp: &mut Warp,
    list: &[u32],
    from: usize,
    a: &[[f32; K]; 16],
    b: &[[f32; 8]; K],
) {
    let mut c = [[0.0; 8]; 16];
    // SAFETY: the caller gives the registers of the whole list.
    unsafe {
        for half in 0..2 {
            let tile = C::get::<WIDE>(warp, &list[from + half * C::REGISTERS..]);
            c[8 * half..8 * half + 8].copy_from_slice(&tile);
        }
        accumulate(a, b, &mut c);
        for half in 0..2 {
            let tile: Tile = std::array::from_fn(|g| c[8 * half + g]);
            C::put::<WIDE>(warp, &list[half * C::REGISTERS..], &tile);
        }
    }
}

/// `mma.sync` with TF32 operands; the list has the registers of d, a, b and c.
struct Tf32Mma<const K: usize>;
impl<const K: usize> Body for Tf32Mma<K> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        if !together(warp, block) {
            return true;
        }
        let (in_a, in_b, in_c) = (K / 2, K / 4, 4);
        let list = &block.lists[op.d as usize..];
        let mut a = [[0.0; K]; 16];
        let mut b = [[0.0; 8]; K];
        // SAFETY: lowering gave the registers of the whole list.
        unsafe {
            for j in 0..in_a {
                let part = warp.get::<u32>(list[in_c + j]).map(read_tf32);
                for g in 0..8 {
                    a[g + j % 2 * 8][j / 2 * 4..][..4].copy_from_slice(&part[4 * g..4 * g + 4]);
                }
            }
            for j in 0..in_b {
                let part = warp.get::<u32>(list[in_c + in_a + j]).map(read_tf32);
                for q in 0..4 {
                    for n in 0..8 {
                        b[q + j * 4][Single::column(n)] = part[4 * n + q];
                    }
                }
            }
            sum::<Single, K, WIDE>(warp, list, in_c + in_a + in_b, &a, &b);
        }
        false
    }
}

/// Rows, columns and depth of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub m: u32,
    pub n: u32,
    pub k: u32,
}

impl Shape {
    /// Reads `m16n8k16`.
    pub(crate) fn parse(text: &str) -> Option<Shape> {
        let (m, rest) = text.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
    }
}

/// A product as lowering needs it: the handler and the registers of each operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mma {
    pub run: Handler,
    pub d: usize,
    pub a: usize,
    pub b: usize,
    pub c: usize,
}

/// `mma.sync` of elements `ty` with accumulators `acc`.
pub(crate) fn mma(shape: Shape, ty: Type, acc: Type) -> Option<Mma> {
    if (shape.m, shape.n) != (16, 8) {
        return None;
    }
    let (run, c) = match (ty, acc, shape.k) {
        (Type::F16, Type::F32, 8) => (handler::<HalfMma<F16, Single, 8>>(), 4),
        (Type::F16, Type::F32, 16) => (handler::<HalfMma<F16, Single, 16>>(), 4),
        (Type::F16, Type::F16, 8) => (handler::<HalfMma<F16, Halves<F16>, 8>>(), 2),
        (Type::F16, Type::F16, 16) => (handler::<HalfMma<F16, Halves<F16>, 16>>(), 2),
        (Type::BF16, Type::F32, 8) => (handler::<HalfMma<Bf16, Single, 8>>(), 4),
        (Type::BF16, Type::F32, 16) => (handler::<HalfMma<Bf16, Single, 16>>(), 4),
        (Type::Tf32, Type::F32, 4) => (handler::<Tf32Mma<4>>(), 4),
        (Type::Tf32, Type::F32, 8) => (handler::<Tf32Mma<8>>(), 4),
        _ => return None,
    };
    let k = shape.k as usize;
    let (a, b) = if ty == Type::Tf32 { (k / 2, k / 4) } else { (k / 4, k / 8) };
    Some(Mma { run, d: c, a, b, c })
}
