//! `wmma.mma`: `d = a b + c` of whole matrices, row after row in the registers.

use std::marker::PhantomData;

use super::super::format::{Bf16, F16, Half, read_tf32};
use super::super::lanes::{Body, handler};
use super::super::state::{Block, Handler, LANES, Op, Warp};
use super::multiply::{Halves, Mma, Shape, Single, accumulate};
use super::together::together;
use crate::ptx::text::Type;

/// The elements of a `wmma` operand or accumulator.
trait Element {
    /// The matrix in the registers that start at `slots[0]`, row after row.
    ///
    /// # Safety
    /// `slots` must hold the registers of the whole matrix, of the warp's kernel.
    unsafe fn get<const WIDE: bool, const R: usize, const C: usize>(warp: &Warp, slots: &[u32]) -> [[f32; C]; R];
}

/// Two neighbours a register.
struct Pairs<H>(PhantomData<H>);
impl<H: Half> Element for Pairs<H> {
    #[inline(always)]
    unsafe fn get<const WIDE: bool, const R: usize, const C: usize>(warp: &Warp, slots: &[u32]) -> [[f32; C]; R] {
        let mut matrix = [[0.0; C]; R];
        for (part, &slot) in matrix.as_flattened_mut().chunks_exact_mut(64).zip(slots) {
            // SAFETY: the caller's promise.
            part.copy_from_slice(&H::widen_all::<WIDE, 64>(unsafe { warp.halves(slot) }));
        }
        matrix
    }
}

/// TF32 numbers, one a register.
struct Tf32;
impl Element for Tf32 {
    #[inline(always)]
    unsafe fn get<const WIDE: bool, const R: usize, const C: usize>(warp: &Warp, slots: &[u32]) -> [[f32; C]; R] {
        let mut matrix = [[0.0; C]; R];
        for (part, &slot) in matrix.as_flattened_mut().chunks_exact_mut(LANES).zip(slots) {
            // SAFETY: the caller's promise.
            part.copy_from_slice(&unsafe { warp.get::<u32>(slot) }.map(read_tf32));
        }
        matrix
    }
}

impl Element for Single {
    #[inline(always)]
    unsafe fn get<const WIDE: bool, const R: usize, const C: usize>(warp: &Warp, slots: &[u32]) -> [[f32; C]; R] {
        let mut matrix = [[0.0; C]; R];
        for (part, &slot) in matrix.as_flattened_mut().chunks_exact_mut(LANES).zip(slots) {
            // SAFETY: the caller's promise.
            part.copy_from_slice(unsafe { warp.get::<f32>(slot) });
        }
        matrix
    }
}

/// Two elements 32 apart a register: the accumulators of 16 bits.
impl<H: Half> Element for Halves<H> {
    #[inline(always)]
    unsafe fn get<const WIDE: bool, const R: usize, const C: usize>(warp: &Warp, slots: &[u32]) -> [[f32; C]; R] {
        let mut matrix = [[0.0; C]; R];
        for (part, &slot) in matrix.as_flattened_mut().chunks_exact_mut(64).zip(slots) {
            // SAFETY: the caller's promise.
            let pairs = unsafe { warp.get::<u32>(slot) };
            for l in 0..LANES {
                part[l] = H::widen(pairs[l] as u16);
                part[LANES + l] = H::widen((pairs[l] >> 16) as u16);
            }
        }
        matrix
    }
}

/// Where the result of a `wmma` goes.
trait Result {
    /// Writes the registers of a matrix.
    ///
    /// # Safety
    /// As for [`Element::get`].
    unsafe fn put<const R: usize, const C: usize>(warp: &mut Warp, slots: &[u32], matrix: &[[f32; C]; R]);
}

impl Result for Single {
    #[inline(always)]
    unsafe fn put<const R: usize, const C: usize>(warp: &mut Warp, slots: &[u32], matrix: &[[f32; C]; R]) {
        for (part, &slot) in matrix.as_flattened().chunks_exact(LANES).zip(slots) {
            let register: [f32; LANES] = std::array::from_fn(|l| part[l]);
            // SAFETY: the caller's promise.
            unsafe { warp.set(slot, &register) };
        }
    }
}

impl<H: Half> Result for Halves<H> {
    #[inline(always)]
    unsafe fn put<const R: usize, const C: usize>(warp: &mut Warp, slots: &[u32], matrix: &[[f32; C]; R]) {
        for (part, &slot) in matrix.as_flattened().chunks_exact(2 * LANES).zip(slots) {
            let register: [u32; LANES] =
                std::array::from_fn(|l| u32::from(H::narrow(part[l])) | u32::from(H::narrow(part[LANES + l])) << 16);
            // SAFETY: the caller's promise.
            unsafe { warp.set(slot, &register) };
        }
    }
}

/// `wmma.mma`; the list has the registers of d, a, b and c, and the operation's `a`, `b` and `c` say where those of a, b
/// and c start.
struct Wmma<E, D, C, const M: usize, const N: usize, const K: usize>(PhantomData<(E, D, C)>);
impl<E: Element, D: Result, C: Element, const M: usize, const N: usize, const K: usize> Body
    for Wmma<E, D, C, M, N, K>
{
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        if !together(warp, block) {
            return true;
        }
        let list = &block.lists[op.d as usize..];
        // SAFETY: lowering gave the registers of the whole list.
        unsafe {
            let a = E::get::<WIDE, M, K>(warp, &list[op.a as usize..]);
            let b = E::get::<WIDE, K, N>(warp, &list[op.b as usize..]);
            let mut c = C::get::<WIDE, M, N>(warp, &list[op.c as usize..]);
            accumulate(&a, &b, &mut c);
            D::put(warp, list, &c);
        }
        false
    }
}

fn wmma_of<E: Element, D: Result, C: Element>(shape: Shape) -> Option<Handler> {
    Some(match (shape.m, shape.n, shape.k) {
        (16, 16, 16) => handler::<Wmma<E, D, C, 16, 16, 16>>(),
        (32, 8, 16) => handler::<Wmma<E, D, C, 32, 8, 16>>(),
        (8, 32, 16) => handler::<Wmma<E, D, C, 8, 32, 16>>(),
        _ => return None,
    })
}

/// `wmma.mma` of elements `ty` into `d` with the accumulator `c`.
pub(crate) fn wmma(shape: Shape, ty: Type, d: Type, c: Type) -> Option<Mma> {
    let registers = |rows: u32, columns: u32| (rows * columns / 64) as usize;
    let (in_a, in_b) = (registers(shape.m, shape.k), registers(shape.k, shape.n));
    let count = |ty: Type| if ty == Type::F32 { 8 } else { 4 };
    let (run, a, b) = match (ty, d, c) {
        (Type::F16, Type::F32, Type::F32) => (wmma_of::<Pairs<F16>, Single, Single>(shape)?, 8, 8),
        (Type::F16, Type::F16, Type::F16) => (wmma_of::<Pairs<F16>, Halves<F16>, Halves<F16>>(shape)?, 8, 8),
        (Type::F16, Type::F32, Type::F16) => (wmma_of::<Pairs<F16>, Single, Halves<F16>>(shape)?, 8, 8),
        (Type::F16, Type::F16, Type::F32) => (wmma_of::<Pairs<F16>, Halves<F16>, Single>(shape)?, 8, 8),
        (Type::BF16, Type::F32, Type::F32) => (wmma_of::<Pairs<Bf16>, Single, Single>(shape)?, in_a, in_b),
        (Type::Tf32, Type::F32, Type::F32) if (shape.m, shape.n, shape.k) == (16, 16, 8) => {
            (handler::<Wmma<Tf32, Single, Single, 16, 16, 8>>(), 4, 4)
        }
        _ => return None,
    };
    Some(Mma { run, d: count(d), a, b, c: count(c) })
}
