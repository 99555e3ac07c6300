//! Compiles a function three times, for AVX-512, AVX2 and any processor, and calls the best version that the processor supports.

/// Defines a function whose body the compiler vectorises for the instruction sets of the processor that runs it.
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
pub(crate) use simd;
