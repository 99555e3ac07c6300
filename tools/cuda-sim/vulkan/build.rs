//! Names the library as a program looks for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // a program that asks for `libvulkan.so.1` finds this library where it is loaded already
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvulkan.so.1");
}
