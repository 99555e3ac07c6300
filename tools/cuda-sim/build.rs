//! Names the library as a program looks for it, and keeps it loaded once it is.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // a program that asks for `libcuda.so.1` finds this library where it is loaded already
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // its threads run its code for as long as the process lives
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
