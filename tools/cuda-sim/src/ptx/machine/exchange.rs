//! Operations that look across the lanes of a warp: shuffles, votes, reductions and matches.

use super::lanes::{Body, handler};
use super::state::{Block, Handler, LANES, Lanes, Op, Trouble, Warp};

/// The lane each lane reads in a shuffle, and whether it lies in its segment; the manual's definition.
#[inline(always)]
fn source<const MODE: u8>(lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let most = lane & segment | clamp & !segment;
    let least = lane & segment;
    let (from, inside) = match MODE {
        UP => (lane.wrapping_sub(b), lane as i32 - b as i32 >= most as i32),
        DOWN => (lane + b, lane + b <= most),
        BUTTERFLY => (lane ^ b, lane ^ b <= most),
        _ => {
            let from = least | b & !segment;
            (from, from <= most)
        }
    };
    if inside { (from & 31, true) } else { (lane, false) }
}

const UP: u8 = 0;
const DOWN: u8 = 1;
const BUTTERFLY: u8 = 2;
const INDEX: u8 = 3;

/// `shfl.sync`: `d|x = a` of the lane that `b` and `c` name.
struct Shuffle<const MODE: u8>;
impl<const MODE: u8> Body for Shuffle<MODE> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut d = [0_u32; LANES];
        let mut inside = 0;
        // SAFETY: lowering gave 32-bit slots, and a predicate in `x`.
        unsafe {
            let (a, b, c) = (warp.get::<u32>(op.a), warp.get::<u32>(op.b), warp.get::<u32>(op.c));
            for l in 0..LANES {
                let (from, ok) = source::<MODE>(l as u32, b[l], c[l]);
                d[l] = a[from as usize];
                inside |= u32::from(ok) << l;
            }
            warp.set(op.d, &d);
            warp.set_predicate(op.x as u32, inside);
        }
        false
    }
}

/// `activemask`.
struct Active;
impl Body for Active {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: lowering gave a 32-bit slot.
        unsafe { warp.set(op.d, &[warp.mask; LANES]) };
        false
    }
}

/// `vote`: predicate `a`, flipped where `x` is 1, among the running lanes.
struct Vote<const KIND: u8>;
impl<const KIND: u8> Body for Vote<KIND> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: lowering gave predicates, and a 32-bit slot for the ballot.
        unsafe {
            let votes = (warp.predicate(op.a) ^ 0_u32.wrapping_sub(op.x as u32)) & warp.mask;
            let held = |yes: bool| if yes { !0 } else { 0 };
            match KIND {
                BALLOT => warp.set(op.d, &[votes; LANES]),
                ALL => warp.set_predicate(op.d, held(votes == warp.mask)),
                ANY => warp.set_predicate(op.d, held(votes != 0)),
                _ => warp.set_predicate(op.d, held(votes == 0 || votes == warp.mask)),
            }
        }
        false
    }
}
const BALLOT: u8 = 0;
const ALL: u8 = 1;
const ANY: u8 = 2;
const UNIFORM: u8 = 3;

/// `redux.sync` over the running lanes.
struct Reduce<const KIND: u8>;
impl<const KIND: u8> Body for Reduce<KIND> {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: lowering gave 32-bit slots.
        unsafe {
            let a = warp.get::<u32>(op.a);
            let join = |x: u32, y: u32| match KIND {
                0 => x.wrapping_add(y),
                1 => x.min(y),
                2 => x.max(y),
                3 => (x as i32).min(y as i32) as u32,
                4 => (x as i32).max(y as i32) as u32,
                5 => x & y,
                6 => x | y,
                _ => x ^ y,
            };
            let value = warp.running().map(|l| a[l]).reduce(join).unwrap_or(0);
            warp.set(op.d, &[value; LANES]);
        }
        false
    }
}

/// `match.any`: the running lanes with the same value of `a`.
struct MatchAny;
impl Body for MatchAny {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        // SAFETY: lowering gave 32-bit slots.
        unsafe {
            let a: Lanes<u32> = *warp.get::<u32>(op.a);
            let mut d = [0; LANES];
            for l in warp.running() {
                d[l] = warp.running().filter(|&k| a[k] == a[l]).fold(0, |bits, k| bits | 1 << k);
            }
            warp.set(op.d, &d);
        }
        false
    }
}

/// `trap`.
struct Stop;
impl Body for Stop {
    unsafe fn run<const WIDE: bool>(_: &mut Warp, block: &mut Block<'_>, _: &Op) -> bool {
        block.trouble = Some(Trouble::Trap);
        true
    }
}

/// Handler of a shuffle in the mode `up`, `down`, `bfly` or `idx`.
pub(crate) fn shuffle(mode: &str) -> Option<Handler> {
    Some(match mode {
        "up" => handler::<Shuffle<UP>>(),
        "down" => handler::<Shuffle<DOWN>>(),
        "bfly" => handler::<Shuffle<BUTTERFLY>>(),
        "idx" => handler::<Shuffle<INDEX>>(),
        _ => return None,
    })
}

/// Handler of a vote: `ballot`, `all`, `any` or `uni`.
pub(crate) fn vote(kind: &str) -> Option<Handler> {
    Some(match kind {
        "ballot" => handler::<Vote<BALLOT>>(),
        "all" => handler::<Vote<ALL>>(),
        "any" => handler::<Vote<ANY>>(),
        "uni" => handler::<Vote<UNIFORM>>(),
        _ => return None,
    })
}

/// Handler of a reduction of 32-bit values over the lanes.
pub(crate) fn reduce(name: &str, signed: bool) -> Option<Handler> {
    Some(match (name, signed) {
        ("add", _) => handler::<Reduce<0>>(),
        ("min", false) => handler::<Reduce<1>>(),
        ("max", false) => handler::<Reduce<2>>(),
        ("min", true) => handler::<Reduce<3>>(),
        ("max", true) => handler::<Reduce<4>>(),
        ("and", _) => handler::<Reduce<5>>(),
        ("or", _) => handler::<Reduce<6>>(),
        ("xor", _) => handler::<Reduce<7>>(),
        _ => return None,
    })
}

/// Handler of `activemask`.
pub(crate) fn active() -> Handler {
    handler::<Active>()
}

/// Handler of `match.any` on 32-bit values.
pub(crate) fn match_any() -> Handler {
    handler::<MatchAny>()
}

/// Handler of `trap`.
pub(crate) fn trap() -> Handler {
    handler::<Stop>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_segment() {
        // a whole warp: c = 31 for bfly, down and idx, 0 for up
        assert_eq!(source::<BUTTERFLY>(3, 16, 31), (19, true));
        assert_eq!(source::<DOWN>(30, 1, 31), (31, true));
        assert_eq!(source::<DOWN>(31, 1, 31), (31, false));
        assert_eq!(source::<UP>(0, 1, 0), (0, false));
        assert_eq!(source::<UP>(5, 2, 0), (3, true));
        assert_eq!(source::<INDEX>(9, 4, 31), (4, true));
        // segments of 8 lanes: mask 24
        let c = 24 << 8 | 31;
        assert_eq!(source::<INDEX>(9, 4, c), (12, true));
        assert_eq!(source::<DOWN>(15, 1, c), (15, false));
        assert_eq!(source::<DOWN>(14, 1, c), (15, true));
        assert_eq!(source::<UP>(8, 1, 24 << 8), (8, false));
    }
}
