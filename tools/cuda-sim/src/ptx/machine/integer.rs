//! Integer arithmetic, logic, shifts and bit fields.

use super::lanes::{Body, One, Three, Two, handler, lane_functions};
use super::state::{Block, Handler, LANES, Op, Warp};
use crate::ptx::text::{Type, Width};

/// Operations of one signedness and width; `$half` is the type whose product fits.
macro_rules! integers {
    ($($module:ident: $t:ty, $bits:ty, $double:ty;)+) => { $(
        pub(crate) mod $module {
            crate::ptx::machine::lanes::lane_functions! {
                Add(a: $t, b: $t) -> $t { a.wrapping_add(b) }
                Sub(a: $t, b: $t) -> $t { a.wrapping_sub(b) }
                Mul(a: $t, b: $t) -> $t { a.wrapping_mul(b) }
                MulHigh(a: $t, b: $t) -> $t { ((a as $double * b as $double) >> <$t>::BITS) as $t }
                Mad(a: $t, b: $t, c: $t) -> $t { a.wrapping_mul(b).wrapping_add(c) }
                MadHigh(a: $t, b: $t, c: $t) -> $t {
                    (((a as $double * b as $double) >> <$t>::BITS) as $t).wrapping_add(c)
                }
                // division by zero gives all ones and leaves the dividend, as the GPUs do
                Div(a: $t, b: $t) -> $t { if b == 0 { !0 } else { a.wrapping_div(b) } }
                Rem(a: $t, b: $t) -> $t { if b == 0 { a } else { a.wrapping_rem(b) } }
                Min(a: $t, b: $t) -> $t { a.min(b) }
                Max(a: $t, b: $t) -> $t { a.max(b) }
                Neg(a: $t) -> $t { a.wrapping_neg() }
                Shr(a: $t, b: u32) -> $t { if b < <$t>::BITS { a >> b } else { a >> (<$t>::BITS - 1) >> 1 } }
            }
        }
    )+ };
}
integers! {
    unsigned16: u16, u16, u32;
    signed16: i16, u16, i32;
    unsigned32: u32, u32, u64;
    signed32: i32, u32, i64;
    unsigned64: u64, u64, u128;
    signed64: i64, u64, i128;
}

macro_rules! bits {
    ($($module:ident: $t:ty;)+) => { $(
        pub(crate) mod $module {
            crate::ptx::machine::lanes::lane_functions! {
                And(a: $t, b: $t) -> $t { a & b }
                Or(a: $t, b: $t) -> $t { a | b }
                Xor(a: $t, b: $t) -> $t { a ^ b }
                Not(a: $t) -> $t { !a }
                Shl(a: $t, b: u32) -> $t { if b < <$t>::BITS { a << b } else { 0 } }
                Copy(a: $t) -> $t { a }
                Popc(a: $t) -> u32 { a.count_ones() }
                Clz(a: $t) -> u32 { a.leading_zeros() }
                Brev(a: $t) -> $t { a.reverse_bits() }
            }
        }
    )+ };
}
bits! { bits16: u16; bits32: u32; bits64: u64; }

lane_functions! {
    AbsS16(a: i16) -> i16 { a.wrapping_abs() }
    AbsS32(a: i32) -> i32 { a.wrapping_abs() }
    AbsS64(a: i64) -> i64 { a.wrapping_abs() }
    WideU16(a: u16, b: u16) -> u32 { u32::from(a) * u32::from(b) }
    WideS16(a: i16, b: i16) -> i32 { i32::from(a) * i32::from(b) }
    WideU32(a: u32, b: u32) -> u64 { u64::from(a) * u64::from(b) }
    WideS32(a: i32, b: i32) -> i64 { i64::from(a) * i64::from(b) }
    MadWideU16(a: u16, b: u16, c: u32) -> u32 { (u32::from(a) * u32::from(b)).wrapping_add(c) }
    MadWideS16(a: i16, b: i16, c: i32) -> i32 { (i32::from(a) * i32::from(b)).wrapping_add(c) }
    MadWideU32(a: u32, b: u32, c: u64) -> u64 { (u64::from(a) * u64::from(b)).wrapping_add(c) }
    MadWideS32(a: i32, b: i32, c: i64) -> i64 { (i64::from(a) * i64::from(b)).wrapping_add(c) }
    AddSatS32(a: i32, b: i32) -> i32 { a.saturating_add(b) }
    SubSatS32(a: i32, b: i32) -> i32 { a.saturating_sub(b) }
    ShfLeftWrap(a: u32, b: u32, c: u32) -> u32 { (pair(a, b) << (c & 31) >> 32) as u32 }
    ShfRightWrap(a: u32, b: u32, c: u32) -> u32 { (pair(a, b) >> (c & 31)) as u32 }
    ShfLeftClamp(a: u32, b: u32, c: u32) -> u32 { (pair(a, b) << c.min(32) >> 32) as u32 }
    ShfRightClamp(a: u32, b: u32, c: u32) -> u32 { (pair(a, b) >> c.min(32)) as u32 }
    BfeU32(a: u32, b: u32, c: u32) -> u32 { extract(u64::from(a), b, c, 32, false) as u32 }
    BfeS32(a: u32, b: u32, c: u32) -> u32 { extract(u64::from(a), b, c, 32, true) as u32 }
    BfeU64(a: u64, b: u32, c: u32) -> u64 { extract(a, b, c, 64, false) }
    BfeS64(a: u64, b: u32, c: u32) -> u64 { extract(a, b, c, 64, true) }
    Prmt(a: u32, b: u32, c: u32) -> u32 { permute(a, b, c) }
}

#[inline(always)]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Bits `position..position + length` of `a`, continued with their sign where `signed`.
#[inline(always)]
fn extract(a: u64, position: u32, length: u32, width: u32, signed: bool) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let shifted = if position < width { a >> position } else { 0 };
    let keep = if length < 64 { (1_u64 << length) - 1 } else { !0 };
    let sign_at = (position + length).saturating_sub(1).min(width - 1);
    let fill = if signed && length > 0 && a >> sign_at & 1 == 1 {
        // from the first bit that is not part of the field, or past the top of the register
        !0_u64 << length.min(width.saturating_sub(position)).min(63)
    } else {
        0
    };
    let fill = if length >= 64 && position == 0 { 0 } else { fill };
    shifted & keep | fill
}

/// The bytes that the four low nibbles of `selector` name, in default mode.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = pair(a, b);
    let mut out = 0;
    for i in 0..4 {
        let nibble = selector >> (4 * i) & 15;
        let byte = (bytes >> (8 * (nibble & 7)) & 0xff) as u32;
        let byte = if nibble & 8 == 0 { byte } else { (byte >> 7) * 0xff };
        out |= byte << (8 * i);
    }
    out
}

/// `lop3`: any function of three bits, its table in `x`.
struct Lop3;
impl Body for Lop3 {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut d = [0_u32; LANES];
        // SAFETY: lowering gave 32-bit slots.
        unsafe {
            let (a, b, c) = (warp.get::<u32>(op.a), warp.get::<u32>(op.b), warp.get::<u32>(op.c));
            for l in 0..LANES {
                for row in 0..8 {
                    let pick = |v: u32, bit: u32| if row >> bit & 1 == 1 { v } else { !v };
                    let on = 0_u32.wrapping_sub((op.x >> row & 1) as u32);
                    d[l] |= pick(a[l], 2) & pick(b[l], 1) & pick(c[l], 0) & on;
                }
            }
            warp.set(op.d, &d);
        }
        false
    }
}

/// `bfi`: field `a` placed into `b`; the position is in `c`, the length in register `x`.
struct Bfi32;
struct Bfi64;
impl Body for Bfi32 {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut d = [0_u32; LANES];
        // SAFETY: lowering gave 32-bit slots.
        unsafe {
            let (a, b) = (warp.get::<u32>(op.a), warp.get::<u32>(op.b));
            let (c, n) = (warp.get::<u32>(op.c), warp.get::<u32>(op.x as u32));
            for l in 0..LANES {
                d[l] = insert(u64::from(a[l]), u64::from(b[l]), c[l], n[l]) as u32;
            }
            warp.set(op.d, &d);
        }
        false
    }
}
impl Body for Bfi64 {
    #[inline(always)]
    unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
        let mut d = [0_u64; LANES];
        // SAFETY: lowering gave 64-bit slots for the values and 32-bit ones for position and length.
        unsafe {
            let (a, b) = (warp.get::<u64>(op.a), warp.get::<u64>(op.b));
            let (c, n) = (warp.get::<u32>(op.c), warp.get::<u32>(op.x as u32));
            for l in 0..LANES {
                d[l] = insert(a[l], b[l], c[l], n[l]);
            }
            warp.set(op.d, &d);
        }
        false
    }
}

#[inline(always)]
fn insert(field: u64, base: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let mask = if length < 64 { (1_u64 << length) - 1 } else { !0 };
    let mask = if position < 64 { mask << position } else { 0 };
    let placed = if position < 64 { field << position } else { 0 };
    base & !mask | placed & mask
}

/// How an instruction of extended precision uses the carry flag; bits of [`Op::x`].
pub(crate) mod carry {
    /// Adds the flag.
    pub(crate) const IN: u64 = 1;
    /// Sets the flag.
    pub(crate) const OUT: u64 = 2;
    /// Subtracts.
    pub(crate) const SUB: u64 = 4;
    /// Multiplies first.
    pub(crate) const MAD: u64 = 8;
    /// Takes the high half of the product.
    pub(crate) const HIGH: u64 = 16;
}

macro_rules! carrying {
    ($name:ident, $t:ty, $double:ty) => {
        struct $name;
        impl Body for $name {
            #[inline(always)]
            unsafe fn run<const WIDE: bool>(warp: &mut Warp, _: &mut Block<'_>, op: &Op) -> bool {
                let has = |flag: u64| op.x & flag != 0;
                let mut d: [$t; LANES] = [0; LANES];
                let mut out = 0_u32;
                // SAFETY: lowering gave slots of this width; `c` is any readable slot where it is not used.
                unsafe {
                    let (a, b, c) = (warp.get::<$t>(op.a), warp.get::<$t>(op.b), warp.get::<$t>(op.c));
                    for l in 0..LANES {
                        let (left, right) = if has(carry::MAD) {
                            let product = <$double>::from(a[l]) * <$double>::from(b[l]);
                            ((product >> if has(carry::HIGH) { <$t>::BITS } else { 0 }) as $t, c[l])
                        } else {
                            (a[l], b[l])
                        };
                        let flag = has(carry::IN) && warp.carry >> l & 1 == 1;
                        let (first, over) =
                            if has(carry::SUB) { left.overflowing_sub(right) } else { left.overflowing_add(right) };
                        let (second, again) = if has(carry::SUB) {
                            first.overflowing_sub(<$t>::from(flag))
                        } else {
                            first.overflowing_add(<$t>::from(flag))
                        };
                        d[l] = second;
                        out |= u32::from(over | again) << l;
                    }
                    warp.set(op.d, &d);
                }
                if has(carry::OUT) {
                    warp.carry = warp.carry & !warp.mask | out & warp.mask;
                }
                false
            }
        }
    };
}
carrying!(Carrying32, u32, u64);
carrying!(Carrying64, u64, u128);

/// Handler of an operation that uses the carry flag.
pub(crate) fn carrying(width: Width) -> Option<Handler> {
    match width {
        Width::W32 => Some(handler::<Carrying32>()),
        Width::W64 => Some(handler::<Carrying64>()),
        _ => None,
    }
}

macro_rules! by_integer {
    ($ty:expr, $shape:ident, $op:ident) => {
        match $ty {
            Type::U16 | Type::B16 => Some(handler::<$shape<unsigned16::$op>>()),
            Type::S16 => Some(handler::<$shape<signed16::$op>>()),
            Type::U32 | Type::B32 => Some(handler::<$shape<unsigned32::$op>>()),
            Type::S32 => Some(handler::<$shape<signed32::$op>>()),
            Type::U64 | Type::B64 => Some(handler::<$shape<unsigned64::$op>>()),
            Type::S64 => Some(handler::<$shape<signed64::$op>>()),
            _ => None,
        }
    };
}

macro_rules! by_width {
    ($width:expr, $shape:ident, $op:ident) => {
        match $width {
            Width::W16 => Some(handler::<$shape<bits16::$op>>()),
            Width::W32 => Some(handler::<$shape<bits32::$op>>()),
            Width::W64 => Some(handler::<$shape<bits64::$op>>()),
            Width::Pred => None,
        }
    };
}

/// Handler of integer arithmetic on values of type `ty`; `form` is the part after the name, such as `wide`.
pub(crate) fn arithmetic(name: &str, form: &str, ty: Type) -> Option<Handler> {
    match (name, form) {
        ("add", "") => by_integer!(ty, Two, Add),
        ("add", "sat") if ty == Type::S32 => Some(handler::<Two<AddSatS32>>()),
        ("sub", "") => by_integer!(ty, Two, Sub),
        ("sub", "sat") if ty == Type::S32 => Some(handler::<Two<SubSatS32>>()),
        ("mul", "lo") => by_integer!(ty, Two, Mul),
        ("mul", "hi") => by_integer!(ty, Two, MulHigh),
        ("mul", "wide") => match ty {
            Type::U16 => Some(handler::<Two<WideU16>>()),
            Type::S16 => Some(handler::<Two<WideS16>>()),
            Type::U32 => Some(handler::<Two<WideU32>>()),
            Type::S32 => Some(handler::<Two<WideS32>>()),
            _ => None,
        },
        ("mad", "lo") => by_integer!(ty, Three, Mad),
        ("mad", "hi") => by_integer!(ty, Three, MadHigh),
        ("mad", "wide") => match ty {
            Type::U16 => Some(handler::<Three<MadWideU16>>()),
            Type::S16 => Some(handler::<Three<MadWideS16>>()),
            Type::U32 => Some(handler::<Three<MadWideU32>>()),
            Type::S32 => Some(handler::<Three<MadWideS32>>()),
            _ => None,
        },
        ("div", "") => by_integer!(ty, Two, Div),
        ("rem", "") => by_integer!(ty, Two, Rem),
        ("min", "") => by_integer!(ty, Two, Min),
        ("max", "") => by_integer!(ty, Two, Max),
        ("neg", "") => by_integer!(ty, One, Neg),
        ("shr", "") => by_integer!(ty, Two, Shr),
        ("abs", "") => match ty {
            Type::S16 => Some(handler::<One<AbsS16>>()),
            Type::S32 => Some(handler::<One<AbsS32>>()),
            Type::S64 => Some(handler::<One<AbsS64>>()),
            _ => None,
        },
        _ => None,
    }
}

/// Handler of logic on the bits of a register.
pub(crate) fn logic(name: &str, width: Width) -> Option<Handler> {
    match name {
        "and" => by_width!(width, Two, And),
        "or" => by_width!(width, Two, Or),
        "xor" => by_width!(width, Two, Xor),
        "not" => by_width!(width, One, Not),
        "shl" => by_width!(width, Two, Shl),
        "mov" => by_width!(width, One, Copy),
        "popc" if width != Width::W16 => by_width!(width, One, Popc),
        "clz" if width != Width::W16 => by_width!(width, One, Clz),
        "brev" if width != Width::W16 => by_width!(width, One, Brev),
        _ => None,
    }
}

/// Handler of an operation on bit fields.
pub(crate) fn field(name: &str, ty: Type) -> Option<Handler> {
    Some(match (name, ty) {
        ("shf.l.wrap", Type::B32) => handler::<Three<ShfLeftWrap>>(),
        ("shf.r.wrap", Type::B32) => handler::<Three<ShfRightWrap>>(),
        ("shf.l.clamp", Type::B32) => handler::<Three<ShfLeftClamp>>(),
        ("shf.r.clamp", Type::B32) => handler::<Three<ShfRightClamp>>(),
        ("bfe", Type::U32) => handler::<Three<BfeU32>>(),
        ("bfe", Type::S32) => handler::<Three<BfeS32>>(),
        ("bfe", Type::U64) => handler::<Three<BfeU64>>(),
        ("bfe", Type::S64) => handler::<Three<BfeS64>>(),
        ("bfi", Type::B32) => handler::<Bfi32>(),
        ("bfi", Type::B64) => handler::<Bfi64>(),
        ("prmt", Type::B32) => handler::<Three<Prmt>>(),
        ("lop3", Type::B32) => handler::<Lop3>(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition of `bfe` in the PTX manual, bit by bit.
    fn bfe(a: u64, position: u32, length: u32, width: u32, signed: bool) -> u64 {
        let msb = width - 1;
        let (pos, len) = (position & 0xff, length & 0xff);
        let sign = if !signed || len == 0 { 0 } else { a >> (pos + len - 1).min(msb) & 1 };
        (0..width).fold(0, |d, i| d | (if i < len && pos + i <= msb { a >> (pos + i) & 1 } else { sign }) << i)
    }

    /// The definition of `bfi` in the PTX manual, bit by bit.
    fn bfi(a: u64, b: u64, position: u32, length: u32, width: u32) -> u64 {
        let (pos, len) = (position & 0xff, length & 0xff);
        (0..width)
            .filter(|i| *i < len && pos + i < width)
            .fold(b, |d, i| d & !(1 << (pos + i)) | (a >> i & 1) << (pos + i))
    }

    proptest! {
        #[test]
        fn fields(a: u64, b: u64, position in 0_u32..300, length in 0_u32..300) {
            for signed in [false, true] {
                prop_assert_eq!(extract(a & 0xffff_ffff, position, length, 32, signed) as u32,
                    bfe(a & 0xffff_ffff, position, length, 32, signed) as u32);
                prop_assert_eq!(extract(a, position, length, 64, signed), bfe(a, position, length, 64, signed));
            }
            let low = 0xffff_ffff;
            prop_assert_eq!(insert(a & low, b & low, position, length) as u32, bfi(a & low, b & low, position, length, 32) as u32);
            prop_assert_eq!(insert(a, b, position, length), bfi(a, b, position, length, 64));
        }

        #[test]
        fn permutation(a: u32, b: u32, selector: u32) {
            let bytes: Vec<u8> = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).collect();
            let pick = |i: u32| {
                let nibble = selector >> (4 * i) & 15;
                let byte = bytes[(nibble & 7) as usize];
                if nibble & 8 == 0 { byte } else { if byte & 0x80 == 0 { 0 } else { 0xff } }
            };
            prop_assert_eq!(permute(a, b, selector), u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)]));
        }
    }
}
