//! Loads, stores and what they move: one value a lane, or a short vector.

use std::marker::PhantomData;

use super::lanes::{Body, handler};
use super::locate::{Touch, locate};
use super::state::{Block, Handler, LANES, Lane, Lanes, Op, Warp};
use crate::ptx::text::{Type, Width};

/// A value in memory that a register of type `D` takes.
trait Stored<D>: Lane {
    fn load(self) -> D;
    fn store(register: D) -> Self;
}
macro_rules! stored {
    ($($m:ty => $($d:ty)+;)+) => { $( $(
        impl Stored<$d> for $m {
            #[inline(always)]
            fn load(self) -> $d { self as $d }
            #[inline(always)]
            fn store(register: $d) -> $m { register as $m }
        }
    )+ )+ };
}
stored! {
    u8 => u16 u32 u64;
    i8 => u16 u32 u64;
    u16 => u16 u32 u64;
    i16 => u16 u32 u64;
    u32 => u32 u64;
    i32 => u32 u64;
    u64 => u64;
}

/// Whether each lane's address follows the one before it without a gap.
#[inline(always)]
fn consecutive(hosts: &Lanes<u64>, bytes: u64) -> bool {
    let mut wrong = 0;
    for l in 0..LANES {
        wrong |= hosts[l].wrapping_sub(hosts[0]) ^ (l as u64 * bytes);
    }
    wrong == 0
}

/// Registers of a vector operand: one in `d` alone, more in the block's list from `d` on.
#[inline(always)]
fn registers<const V: usize>(block: &Block<'_>, first: u32) -> [u32; V] {
    let mut out = [first; V];
    if V > 1 {
        out.copy_from_slice(&block.lists[first as usize..first as usize + V]);
    }
    out
}

/// `ld`: `V` values of type `M` at register `a` into registers of type `D`.
struct Load<M, D, const V: usize>(PhantomData<(M, D)>);
impl<M: Stored<D>, D: Lane, const V: usize> Body for Load<M, D, V> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        let bytes = (size_of::<M>() * V) as u32;
        // SAFETY: lowering gave a 64-bit address, registers as wide as `D`, and a place of this kernel; `locate` checked
        // that each running lane's bytes are inside one live allocation and aligned.
        unsafe {
            let Some(hosts) = locate(warp, block, op, op.a, warp.mask, (bytes, bytes), Touch::Read) else {
                return true;
            };
            let targets = registers::<V>(block, op.d);
            let mut out = [[D::default(); LANES]; V];
            if V == 1 && warp.mask == !0 && consecutive(&hosts, u64::from(bytes)) {
                let all = (hosts[0] as *const Lanes<M>).read();
                for l in 0..LANES {
                    out[0][l] = all[l].load();
                }
            } else if warp.mask == !0 {
                // four lanes at a time, so that the compiler moves whole vectors
                for l in (0..LANES).step_by(4) {
                    let values: [[M; V]; 4] = std::array::from_fn(|i| (hosts[l + i] as *const [M; V]).read());
                    for v in 0..V {
                        for i in 0..4 {
                            out[v][l + i] = values[i][v].load();
                        }
                    }
                }
            } else {
                for l in warp.running() {
                    let value = (hosts[l] as *const [M; V]).read();
                    for v in 0..V {
                        out[v][l] = value[v].load();
                    }
                }
            }
            for v in 0..V {
                warp.set(targets[v], &out[v]);
            }
        }
        false
    }
}

/// `st`: `V` values of type `M` at register `a` from registers of type `D`.
struct Store<M, D, const V: usize>(PhantomData<(M, D)>);
impl<M: Stored<D>, D: Lane, const V: usize> Body for Store<M, D, V> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        let bytes = (size_of::<M>() * V) as u32;
        // SAFETY: as for `Load`; blocks of one launch may write the same bytes, as they may on a GPU.
        unsafe {
            let Some(hosts) = locate(warp, block, op, op.a, warp.mask, (bytes, bytes), Touch::Write) else {
                return true;
            };
            let sources = registers::<V>(block, op.d);
            if V == 1 && warp.mask == !0 && consecutive(&hosts, u64::from(bytes)) {
                let from = warp.get::<D>(sources[0]);
                let mut all = [M::default(); LANES];
                for l in 0..LANES {
                    all[l] = M::store(from[l]);
                }
                (hosts[0] as *mut Lanes<M>).write(all);
                return false;
            }
            let from = sources.map(|slot| warp.get::<D>(slot));
            for l in warp.running() {
                let mut value = [M::default(); V];
                for v in 0..V {
                    value[v] = M::store(from[v][l]);
                }
                (hosts[l] as *mut [M; V]).write(value);
            }
        }
        false
    }
}

/// `ld.param` at the fixed offset `x`: the same value in every lane.
struct Param<M, D, const V: usize>(PhantomData<(M, D)>);
impl<M: Stored<D>, D: Lane, const V: usize> Body for Param<M, D, V> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, block: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: lowering checked that the offset is inside the parameters, and gave registers as wide as `D`.
        unsafe {
            let value = block.params.host.add(op.x as usize).cast::<[M; V]>().read_unaligned();
            let targets = registers::<V>(block, op.d);
            for v in 0..V {
                warp.set(targets[v], &[value[v].load(); LANES]);
            }
        }
        false
    }
}

/// Which way a memory operation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Load,
    Store,
    /// A load of a parameter at a fixed offset.
    Param,
}

fn of<M: Stored<D>, D: Lane>(access: Access, count: usize) -> Option<Handler> {
    macro_rules! counts {
        ($body:ident) => {
            match count {
                1 => handler::<$body<M, D, 1>>(),
                2 => handler::<$body<M, D, 2>>(),
                4 => handler::<$body<M, D, 4>>(),
                8 => handler::<$body<M, D, 8>>(),
                _ => return None,
            }
        };
    }
    Some(match access {
        Access::Load => counts!(Load),
        Access::Store => counts!(Store),
        Access::Param => counts!(Param),
    })
}

/// Handler of an access of `count` values of type `ty` with registers of `width`.
pub(crate) fn access(access: Access, ty: Type, count: usize, width: Width) -> Option<Handler> {
    use Type::{B8, B16, B32, B64, BF16, BF16x2, F16, F16x2, F32, F64, S8, S16, S32, S64, U8, U16, U32, U64};
    macro_rules! widths {
        ($m:ty: $($w:ident $d:ty),+) => { match width { $(Width::$w => of::<$m, $d>(access, count),)+ _ => None } };
    }
    match ty {
        B8 | U8 => widths!(u8: W16 u16, W32 u32, W64 u64),
        S8 => widths!(i8: W16 u16, W32 u32, W64 u64),
        B16 | U16 | F16 | BF16 => widths!(u16: W16 u16, W32 u32, W64 u64),
        S16 => widths!(i16: W16 u16, W32 u32, W64 u64),
        B32 | U32 | F32 | F16x2 | BF16x2 => widths!(u32: W32 u32, W64 u64),
        S32 => widths!(i32: W32 u32, W64 u64),
        B64 | U64 | S64 | F64 | Type::F32x2 => widths!(u64: W64 u64),
        Type::Pred | Type::Tf32 => None,
    }
}
