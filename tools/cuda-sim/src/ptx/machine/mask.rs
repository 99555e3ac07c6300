//! Between a bit for each lane and a value for each lane.

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// One value for each lane.
pub(crate) type Lanes<T> = [T; LANES];

/// One bit for each byte of 0xff.
#[inline(always)]
pub(crate) fn pack<const WIDE: bool>(flags: &Lanes<u8>) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm256_movemask_epi8};
        // SAFETY: `WIDE` promises AVX2, and the array has 32 bytes.
        return unsafe { _mm256_movemask_epi8(_mm256_loadu_si256(flags.as_ptr().cast())) } as u32;
    }
    let mut bits = 0;
    for l in 0..LANES {
        bits |= u32::from(flags[l] & 1) << l;
    }
    bits
}

/// All ones for each lane whose bit is set, zero for the others.
#[inline(always)]
pub(crate) fn expand(bits: u32) -> Lanes<u32> {
    let mut out = [0; LANES];
    for l in 0..LANES {
        out[l] = if bits & 1 << l == 0 { 0 } else { !0 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_undoes_expanding() {
        for bits in [0, 1, 0x8000_0000, 0x1234_5678, !0] {
            let flags = expand(bits).map(|v| v as u8);
            assert_eq!(pack::<false>(&flags), bits);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                assert_eq!(pack::<true>(&flags), bits);
            }
        }
    }
}
