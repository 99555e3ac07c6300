//! The PTX interpreter, driven with small kernels written out and with real ones.

mod control_flow;
mod faults;
mod matrices;
mod memory;
mod numbers;
mod races;
mod real;

use kiln_cuda_sim::ptx::{Buffers, Counts, ExecError, Launch, Limits, Module};

/// A kernel `k` with a pointer `data`; `body` may use `%r`, `%rd`, `%rs`, `%p` (up to 99) and `%d` (the pointer).
pub(crate) fn kernel(declarations: &str, body: &str) -> Module {
    let text = format!(
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 data)\n{{\n\
         .reg .pred %p<99>;\n.reg .b16 %rs<99>;\n.reg .b32 %r<99>;\n.reg .b64 %rd<99>;\n.reg .b64 %d;\n{declarations}\n\
         ld.param.b64 %d, [data];\n{body}\nret;\n}}"
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Runs `k` of `module` on `data`, which it changes.
pub(crate) fn launch(module: &Module, grid: [u32; 3], block: [u32; 3], data: &mut [u32]) -> Result<Counts, ExecError> {
    launch_within(module, grid, block, data, &Limits::default())
}

/// [`launch`] with limits.
pub(crate) fn launch_within(
    module: &Module,
    grid: [u32; 3],
    block: [u32; 3],
    data: &mut [u32],
    limits: &Limits,
) -> Result<Counts, ExecError> {
    let mut memory = Buffers::default();
    let bytes: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    let address = memory.upload(&bytes);
    let launch = Launch { grid, block, shared: 0, params: &address.to_le_bytes(), globals: &[] };
    let result = module.kernel("k").expect("the kernel").run(&launch, &memory, limits);
    let after = memory.read(address, bytes.len());
    for (value, bytes) in data.iter_mut().zip(after.chunks_exact(4)) {
        *value = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    }
    result
}

/// What lane `l` of one warp stores at `data + 4 l` after `body`, which leaves it in `%r0`; its own word is in `%r1`.
pub(crate) fn each_lane(body: &str, words: [u32; 32]) -> [u32; 32] {
    let module = kernel(
        "",
        &format!(
            "mov.u32 %r90, %tid.x; mul.wide.u32 %rd90, %r90, 4; add.s64 %rd91, %d, %rd90;\n\
             ld.global.b32 %r1, [%rd91];\n{body}\nst.global.b32 [%rd91], %r0;"
        ),
    );
    let mut data = words;
    launch(&module, [1; 3], [32, 1, 1], &mut data).expect("runs");
    data
}
