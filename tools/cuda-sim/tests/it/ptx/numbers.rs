//! Arithmetic as whole instructions: each against the same function in Rust.

use half::{bf16, f16};
use proptest::prelude::*;

use super::each_lane;

fn lanes() -> impl Strategy<Value = [u32; 32]> {
    prop::array::uniform32(any::<u32>())
}

fn floats() -> impl Strategy<Value = [u32; 32]> {
    prop::array::uniform32((-1e10_f32..1e10).prop_map(f32::to_bits))
}

/// The word of the lane before, so that two operands differ: `%r2`.
const SECOND: &str = "shfl.sync.idx.b32 %r2, %r1, %r91, 31, -1;";

fn two(instruction: &str, words: [u32; 32]) -> [u32; 32] {
    each_lane(&format!("add.s32 %r91, %r90, 31; and.b32 %r91, %r91, 31; {SECOND} {instruction}"), words)
}

fn expected(words: [u32; 32], f: impl Fn(u32, u32) -> u32) -> [u32; 32] {
    std::array::from_fn(|l| f(words[l], words[(l + 31) % 32]))
}

fn signed(f: impl Fn(i32, i32) -> i32) -> impl Fn(u32, u32) -> u32 {
    move |a, b| f(a as i32, b as i32) as u32
}

fn single(f: impl Fn(f32, f32) -> f32) -> impl Fn(u32, u32) -> u32 {
    move |a, b| f(f32::from_bits(a), f32::from_bits(b)).to_bits()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn integers(w in lanes()) {
        prop_assert_eq!(two("add.s32 %r0, %r1, %r2;", w), expected(w, u32::wrapping_add));
        prop_assert_eq!(two("sub.s32 %r0, %r1, %r2;", w), expected(w, u32::wrapping_sub));
        prop_assert_eq!(two("mul.lo.s32 %r0, %r1, %r2;", w), expected(w, u32::wrapping_mul));
        prop_assert_eq!(two("mul.hi.u32 %r0, %r1, %r2;", w), expected(w, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32));
        prop_assert_eq!(two("mul.hi.s32 %r0, %r1, %r2;", w), expected(w, signed(|a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32)));
        prop_assert_eq!(two("mad.lo.s32 %r0, %r1, %r2, %r1;", w), expected(w, |a, b| a.wrapping_mul(b).wrapping_add(a)));
        prop_assert_eq!(two("div.u32 %r0, %r1, %r2;", w), expected(w, |a, b| a.checked_div(b).unwrap_or(!0)));
        prop_assert_eq!(two("rem.u32 %r0, %r1, %r2;", w), expected(w, |a, b| a.checked_rem(b).unwrap_or(a)));
        prop_assert_eq!(two("shr.u32 %r2, %r2, 28; div.u32 %r0, %r1, %r2;", w), expected(w, |a, b| a.checked_div(b >> 28).unwrap_or(!0)));
        prop_assert_eq!(two("div.s32 %r0, %r1, %r2;", w), expected(w, signed(|a, b| if b == 0 { -1 } else { a.wrapping_div(b) })));
        prop_assert_eq!(two("rem.s32 %r0, %r1, %r2;", w), expected(w, signed(|a, b| if b == 0 { a } else { a.wrapping_rem(b) })));
        prop_assert_eq!(two("min.s32 %r0, %r1, %r2;", w), expected(w, signed(i32::min)));
        prop_assert_eq!(two("max.u32 %r0, %r1, %r2;", w), expected(w, u32::max));
        prop_assert_eq!(two("xor.b32 %r0, %r1, %r2;", w), expected(w, |a, b| a ^ b));
        prop_assert_eq!(two("and.b32 %r2, %r2, 63; shl.b32 %r0, %r1, %r2;", w), expected(w, |a, b| a.checked_shl(b & 63).unwrap_or(0)));
        prop_assert_eq!(two("and.b32 %r2, %r2, 63; shr.s32 %r0, %r1, %r2;", w), expected(w, |a, b| (a as i32 >> (b & 63).min(31)) as u32));
        prop_assert_eq!(two("shf.l.wrap.b32 %r0, %r1, %r1, %r2;", w), expected(w, |a, b| a.rotate_left(b & 31)));
        prop_assert_eq!(two("clz.b32 %r0, %r1;", w), expected(w, |a, _| a.leading_zeros()));
        prop_assert_eq!(two("popc.b32 %r0, %r1;", w), expected(w, |a, _| a.count_ones()));
        prop_assert_eq!(two("lop3.b32 %r0, %r1, %r2, %r90, 0x96; xor.b32 %r0, %r0, %r90;", w), expected(w, |a, b| a ^ b));
        // 64 bits: the high half of a product, by carrying and by a wide product
        let high = |a: u32, b: u32| ((u64::from(a) * u64::from(b) + u64::from(a)) >> 32) as u32;
        prop_assert_eq!(two("mul.wide.u32 %rd1, %r1, %r2; cvt.u64.u32 %rd2, %r1; add.s64 %rd1, %rd1, %rd2; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r0, %rd1;", w), expected(w, high));
        prop_assert_eq!(two("mad.lo.cc.u32 %r3, %r1, %r2, %r1; madc.hi.u32 %r0, %r1, %r2, 0;", w), expected(w, high));
        prop_assert_eq!(two("mul.wide.u32 %rd1, %r1, %r2; mov.b64 {_, %r0}, %rd1;", w), expected(w, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32));
    }

    #[test]
    fn floats_of_32_bits(w in floats()) {
        prop_assert_eq!(two("add.f32 %r0, %r1, %r2;", w), expected(w, single(|a, b| a + b)));
        prop_assert_eq!(two("sub.rn.f32 %r0, %r1, %r2;", w), expected(w, single(|a, b| a - b)));
        prop_assert_eq!(two("mul.f32 %r0, %r1, %r2;", w), expected(w, single(|a, b| a * b)));
        prop_assert_eq!(two("div.rn.f32 %r0, %r1, %r2;", w), expected(w, single(|a, b| a / b)));
        prop_assert_eq!(two("fma.rn.f32 %r0, %r1, %r2, %r1;", w), expected(w, single(|a, b| a.mul_add(b, a))));
        prop_assert_eq!(two("abs.f32 %r1, %r1; sqrt.rn.f32 %r0, %r1;", w), expected(w, single(|a, _| a.abs().sqrt())));
        prop_assert_eq!(two("copysign.f32 %r0, %r1, %r2;", w), expected(w, single(|a, b| b.copysign(a))));
        prop_assert_eq!(two("cvt.rzi.s32.f32 %r0, %r1;", w), expected(w, |a, _| f32::from_bits(a) as i32 as u32));
        prop_assert_eq!(two("cvt.rni.f32.f32 %r0, %r1;", w), expected(w, single(|a, _| a.round_ties_even())));
        prop_assert_eq!(two("cvt.rn.f32.s32 %r0, %r1;", w), expected(w, |a, _| (a as i32 as f32).to_bits()));
        prop_assert_eq!(two("setp.lt.f32 %p1, %r1, %r2; selp.b32 %r0, %r1, %r2, %p1;", w), expected(w, single(f32::min)));
        prop_assert_eq!(two("cvt.f64.f32 %rd1, %r1; cvt.f64.f32 %rd2, %r2; mul.f64 %rd1, %rd1, %rd2; cvt.rn.f32.f64 %r0, %rd1;", w),
            expected(w, single(|a, b| (f64::from(a) * f64::from(b)) as f32)));
    }

    #[test]
    fn halves(w in lanes()) {
        let pack = |h: u16, l: u16| u32::from(h) << 16 | u32::from(l);
        prop_assert_eq!(two("mov.b32 {%rs1, %rs2}, %r1; cvt.f32.f16 %r3, %rs1; mov.b32 %r0, %r3;", w), expected(w, |a, _| {
            let v = f16::from_bits(a as u16).to_f32();
            // the GPU keeps a NaN's bits, shifted; so do these conversions
            if v.is_nan() { (u32::from(a as u16 & 0x8000) << 16) | 0x7f80_0000 | (a & 0x3ff) << 13 | nan_quiet(a) } else { v.to_bits() }
        }));
        let finite: [u32; 32] = w.map(|v| v & 0xbfff_ffff);
        prop_assert_eq!(two("cvt.rn.bf16x2.f32 %r0, %r1, %r2;", finite), expected(finite, |a, b| {
            pack(bf16::from_f32(f32::from_bits(a)).to_bits(), bf16::from_f32(f32::from_bits(b)).to_bits())
        }));
        prop_assert_eq!(two("cvt.rn.f16x2.f32 %r0, %r1, %r2;", finite), expected(finite, |a, b| {
            pack(f16::from_f32_const(f32::from_bits(a)).to_bits(), f16::from_f32_const(f32::from_bits(b)).to_bits())
        }));
        prop_assert_eq!(two("prmt.b32 %r0, %r1, %r2, 0x5410U;", w), expected(w, |a, b| a & 0xffff | b << 16));
        prop_assert_eq!(two("mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r0, {%rs2, %rs1};", w), expected(w, |a, _| a.rotate_left(16)));
    }
}

/// Whether the conversion made a signalling NaN quiet, which processors do and portable code does not.
fn nan_quiet(a: u32) -> u32 {
    let quiet = is_f16c();
    if quiet && a & 0x3ff != 0 { 1 << 22 } else { 0 }
}

fn is_f16c() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[test]
fn special_registers() {
    let ids = each_lane("mov.u32 %r0, %laneid;", [0; 32]);
    assert_eq!(ids, std::array::from_fn(|l| l as u32));
    assert_eq!(each_lane("mov.u32 %r0, %lanemask_lt;", [0; 32]), std::array::from_fn(|l| (1_u32 << l) - 1));
    assert_eq!(each_lane("mov.u32 %r0, %ntid.x;", [0; 32]), [32; 32]);
}

#[test]
fn flushing_and_rounding_down() {
    let tiny = f32::from_bits(3).to_bits();
    assert_eq!(each_lane("add.ftz.f32 %r0, %r1, 0f00000000;", [tiny; 32]), [0; 32]);
    assert_eq!(each_lane("add.f32 %r0, %r1, 0f00000000;", [tiny; 32]), [3; 32]);
    // 1 - 2^-30 lies below 1: down gives the number before it, nearest gives 1
    let small = (-(2.0_f32.powi(-30))).to_bits();
    assert_eq!(each_lane("add.rm.f32 %r0, %r1, 0f3F800000;", [small; 32]), [1.0_f32.to_bits() - 1; 32]);
    assert_eq!(each_lane("add.rn.f32 %r0, %r1, 0f3F800000;", [small; 32]), [1.0_f32.to_bits(); 32]);
}
