//! Functions that are compiled for AVX-512, AVX2 and any processor, and sums in a fixed order.

/// Defines a function that is compiled three times, for AVX-512, AVX2 and any processor. A call runs the best version that the processor
/// supports.
#[macro_export]
macro_rules! simd {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block) => {
        $(#[$attribute])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $visibility fn $name($($argument: $type),*) $(-> $output)? {
            #[inline(always)]
            fn body($($argument: $type),*) $(-> $output)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
                fn avx512($($argument: $type),*) $(-> $output)? {
                    body($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $output)? {
                    body($($argument),*)
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                {
                    // SAFETY: the processor has the instructions.
                    return unsafe { avx512($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has the instructions.
                    return unsafe { avx2($($argument),*) };
                }
            }
            body($($argument),*)
        }
    };
}

/// Number of partial sums that are computed together. The compiler does not reorder sums of floats, so it vectorises only sums that are
/// written so.
pub const LANES: usize = 32;

/// The sum of partial sums: halves are added to each other until one is left.
#[inline(always)]
pub fn lanes_sum(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Sums of two values of each element, in a fixed order.
#[inline(always)]
pub fn sums(values: &[f32], each: impl Fn(f32) -> [f32; 2]) -> [f32; 2] {
    let mut lanes = [[0.0f32; LANES]; 2];
    let chunks = values.chunks_exact(LANES);
    let mut total = [0.0f32; 2];
    for value in chunks.remainder() {
        let [first, second] = each(*value);
        total[0] += first;
        total[1] += second;
    }
    for chunk in chunks {
        for lane in 0..LANES {
            let [first, second] = each(chunk[lane]);
            lanes[0][lane] += first;
            lanes[1][lane] += second;
        }
    }
    [total[0] + lanes_sum(lanes[0]), total[1] + lanes_sum(lanes[1])]
}

/// Sums of two values of each pair, in a fixed order.
#[inline(always)]
pub fn pair_sums(left: &[f32], right: &[f32], each: impl Fn(f32, f32) -> [f32; 2]) -> [f32; 2] {
    let mut lanes = [[0.0f32; LANES]; 2];
    let (left_chunks, right_chunks) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let mut total = [0.0f32; 2];
    for (a, b) in left_chunks.remainder().iter().zip(right_chunks.remainder()) {
        let [first, second] = each(*a, *b);
        total[0] += first;
        total[1] += second;
    }
    for (a, b) in left_chunks.zip(right_chunks) {
        for lane in 0..LANES {
            let [first, second] = each(a[lane], b[lane]);
            lanes[0][lane] += first;
            lanes[1][lane] += second;
        }
    }
    [total[0] + lanes_sum(lanes[0]), total[1] + lanes_sum(lanes[1])]
}

/// The largest value, or negative infinity if there are no values.
#[inline(always)]
pub fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |largest, value| largest.max(*value))
}
