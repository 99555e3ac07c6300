//! The C interface: the functions that a program finds in `libcuda.so.1`, each a thin shell around the driver.
#![allow(non_snake_case)] // the names are NVIDIA's

mod context;
mod control;
mod copy;
mod device;
mod graph;
mod launch;
mod machine;
mod memory;
mod module;
mod pointer;
mod pool;
mod stream;
mod stubs;

/// Writes C functions: each gets the machine and gives the code of its body, or 0.
macro_rules! driver {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$sim:pat_param| $body:block)*) => {
        $(
            $(#[$attribute])*
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::api::machine::call(stringify!($name), |$sim| $body)
            }
        )*
    };
}
use driver;
