//! `atom` and `red`: read, change and write back, lane after lane, in one step as other blocks see it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::format::{Bf16, F16, Half};
use super::lanes::{Body, handler};
use super::locate::{Touch, locate};
use super::state::{Block, Handler, LANES, Lane, Op, Warp};
use crate::ptx::text::Type;

/// A type that the host changes atomically.
trait Cell: Lane {
    /// Replaces the value at `host` by what `f` makes of it; gives the value before.
    ///
    /// # Safety
    /// `host` must be aligned and lie in live memory that other threads only touch through raw pointers.
    unsafe fn update(host: u64, f: impl Fn(Self) -> Self) -> Self;
}
macro_rules! cell {
    ($($t:ty, $atomic:ty;)+) => { $(
        impl Cell for $t {
            #[inline(always)]
            unsafe fn update(host: u64, f: impl Fn($t) -> $t) -> $t {
                // SAFETY: the caller's promise.
                let cell = unsafe { <$atomic>::from_ptr(host as *mut $t) };
                let mut seen = cell.load(Ordering::SeqCst);
                loop {
                    match cell.compare_exchange_weak(seen, f(seen), Ordering::SeqCst, Ordering::SeqCst) {
                        Ok(before) => return before,
                        Err(now) => seen = now,
                    }
                }
            }
        }
    )+ };
}
cell! { u16, AtomicU16; u32, AtomicU32; u64, AtomicU64; }

/// A read-modify-write function; `c` is used by `cas` alone.
trait Change {
    type T: Cell;
    fn change(old: Self::T, b: Self::T, c: Self::T) -> Self::T;
}

macro_rules! changes {
    ($($name:ident: $t:ty, |$old:ident, $b:ident, $c:ident| $body:expr;)+) => { $(
        struct $name;
        impl Change for $name {
            type T = $t;
            #[inline(always)]
            #[allow(unused_variables)]
            fn change($old: $t, $b: $t, $c: $t) -> $t { $body }
        }
    )+ };
}
changes! {
    Add32: u32, |a, b, c| a.wrapping_add(b);
    Add64: u64, |a, b, c| a.wrapping_add(b);
    AddF32: u32, |a, b, c| (f32::from_bits(a) + f32::from_bits(b)).to_bits();
    AddF64: u64, |a, b, c| (f64::from_bits(a) + f64::from_bits(b)).to_bits();
    AddF16: u16, |a, b, c| F16::narrow(F16::widen(a) + F16::widen(b));
    AddBf16: u16, |a, b, c| Bf16::narrow(Bf16::widen(a) + Bf16::widen(b));
    AddF16x2: u32, |a, b, c| both::<F16>(a, b);
    AddBf16x2: u32, |a, b, c| both::<Bf16>(a, b);
    MinU32: u32, |a, b, c| a.min(b);
    MaxU32: u32, |a, b, c| a.max(b);
    MinS32: u32, |a, b, c| (a as i32).min(b as i32) as u32;
    MaxS32: u32, |a, b, c| (a as i32).max(b as i32) as u32;
    MinU64: u64, |a, b, c| a.min(b);
    MaxU64: u64, |a, b, c| a.max(b);
    MinS64: u64, |a, b, c| (a as i64).min(b as i64) as u64;
    MaxS64: u64, |a, b, c| (a as i64).max(b as i64) as u64;
    And32: u32, |a, b, c| a & b;
    Or32: u32, |a, b, c| a | b;
    Xor32: u32, |a, b, c| a ^ b;
    And64: u64, |a, b, c| a & b;
    Or64: u64, |a, b, c| a | b;
    Xor64: u64, |a, b, c| a ^ b;
    Exch32: u32, |a, b, c| b;
    Exch64: u64, |a, b, c| b;
    Cas16: u16, |a, b, c| if a == b { c } else { a };
    Cas32: u32, |a, b, c| if a == b { c } else { a };
    Cas64: u64, |a, b, c| if a == b { c } else { a };
    Inc32: u32, |a, b, c| if a >= b { 0 } else { a + 1 };
    Dec32: u32, |a, b, c| if a == 0 || a > b { b } else { a - 1 };
}

#[inline(always)]
fn both<H: Half>(a: u32, b: u32) -> u32 {
    let add = |a: u32, b: u32| u32::from(H::narrow(H::widen(a as u16) + H::widen(b as u16)));
    add(a, b) | add(a >> 16, b >> 16) << 16
}

/// The result goes to `d`; the address is in `a`; the operands are listed from `b` on.
struct Atomic<F>(PhantomData<F>);
impl<F: Change> Body for Atomic<F> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        let bytes = size_of::<F::T>() as u32;
        // SAFETY: lowering gave slots of these widths and two entries in the list; `locate` checked the addresses.
        unsafe {
            let Some(hosts) = locate(warp, block, op, op.a, warp.mask, (bytes, bytes), Touch::Update) else {
                return true;
            };
            let list = &block.lists[op.b as usize..];
            let (b, c) = (warp.get::<F::T>(list[0]), warp.get::<F::T>(list[1]));
            let mut d = [F::T::default(); LANES];
            for l in warp.running() {
                let (b, c) = (b[l], c[l]);
                d[l] = F::T::update(hosts[l], |old| F::change(old, b, c));
            }
            warp.set(op.d, &d);
        }
        false
    }
}

/// Handler of the atomic operation `name` on values of type `ty`.
pub(crate) fn atomic(name: &str, ty: Type) -> Option<Handler> {
    use Type::{B16, B32, B64, BF16, BF16x2, F16 as H, F16x2, F32, F64, S32, S64, U32, U64};
    Some(match (name, ty) {
        ("add", U32 | S32) => handler::<Atomic<Add32>>(),
        ("add", U64 | S64) => handler::<Atomic<Add64>>(),
        ("add", F32) => handler::<Atomic<AddF32>>(),
        ("add", F64) => handler::<Atomic<AddF64>>(),
        ("add", H) => handler::<Atomic<AddF16>>(),
        ("add", BF16) => handler::<Atomic<AddBf16>>(),
        ("add", F16x2) => handler::<Atomic<AddF16x2>>(),
        ("add", BF16x2) => handler::<Atomic<AddBf16x2>>(),
        ("min", U32) => handler::<Atomic<MinU32>>(),
        ("max", U32) => handler::<Atomic<MaxU32>>(),
        ("min", S32) => handler::<Atomic<MinS32>>(),
        ("max", S32) => handler::<Atomic<MaxS32>>(),
        ("min", U64) => handler::<Atomic<MinU64>>(),
        ("max", U64) => handler::<Atomic<MaxU64>>(),
        ("min", S64) => handler::<Atomic<MinS64>>(),
        ("max", S64) => handler::<Atomic<MaxS64>>(),
        ("and", B32) => handler::<Atomic<And32>>(),
        ("or", B32) => handler::<Atomic<Or32>>(),
        ("xor", B32) => handler::<Atomic<Xor32>>(),
        ("and", B64) => handler::<Atomic<And64>>(),
        ("or", B64) => handler::<Atomic<Or64>>(),
        ("xor", B64) => handler::<Atomic<Xor64>>(),
        ("exch", B32 | U32 | S32 | F32) => handler::<Atomic<Exch32>>(),
        ("exch", B64 | U64 | S64 | F64) => handler::<Atomic<Exch64>>(),
        ("cas", B16) => handler::<Atomic<Cas16>>(),
        ("cas", B32 | U32 | S32) => handler::<Atomic<Cas32>>(),
        ("cas", B64 | U64 | S64) => handler::<Atomic<Cas64>>(),
        ("inc", U32) => handler::<Atomic<Inc32>>(),
        ("dec", U32) => handler::<Atomic<Dec32>>(),
        _ => return None,
    })
}
