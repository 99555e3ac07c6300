//! Kernels that a burn 0.22.1 program (cubecl 0.11.3, LLVM 22) had compiled for sm_90a; `tests/ptx/README.md` lists them.

use std::path::Path;

use kiln_cuda_sim::ptx::Module;

#[test]
fn every_real_kernel_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptx");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the folder of fixtures") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "ptx") {
            let text = std::fs::read_to_string(&path).expect("a text");
            let module = Module::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!((module.version(), module.target()), ("8.7", "sm_90a"));
            let kernel = module.kernels().next().expect("one kernel");
            let [x, y, z] = kernel.max_threads().expect("cubecl compiles for one block size");
            assert!((1..=1024).contains(&(x * y * z)) && kernel.registers() > 0);
            seen += 1;
        }
    }
    assert!(seen >= 8, "{seen} fixtures");
}
