//! The errors of wrong programs.

use super::{kernel, launch};
use kiln_cuda_sim::ptx::{ExecError, Module, PtxError, Space};

#[test]
fn an_address_past_the_end() {
    let module =
        kernel("", "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %d, %rd1;\nst.global.b32 [%rd1], 1;");
    let mut data = [0; 40];
    let error = launch(&module, [1; 3], [64, 1, 1], &mut data).expect_err("24 threads are outside");
    let ExecError::IllegalAddress { bytes: 4, space: Space::Global, fault, .. } = error else { panic!("{error}") };
    assert_eq!((fault.thread, fault.block, fault.line), (40, [0; 3], 14), "{error}");
}

#[test]
fn addresses_before_an_allocation_and_of_nothing() {
    for offset in ["-4", "1099511627776"] {
        let module = kernel("", &format!("add.s64 %rd1, %d, {offset}; ld.global.b32 %r1, [%rd1];"));
        let error = launch(&module, [1; 3], [32, 1, 1], &mut [0; 8]).expect_err("outside");
        assert!(matches!(error, ExecError::IllegalAddress { .. }), "{error}");
    }
    let module = kernel("", "mov.b64 %rd1, 0; ld.global.b32 %r1, [%rd1];");
    let error = launch(&module, [1; 3], [1, 1, 1], &mut [0; 8]).expect_err("a null pointer");
    assert!(matches!(error, ExecError::IllegalAddress { address: 0, .. }), "{error}");
}

#[test]
fn lanes_that_do_not_run_may_hold_any_address() {
    let module = kernel(
        "",
        "mov.u32 %r1, %tid.x; mov.b64 %rd1, 12345; setp.lt.u32 %p1, %r1, 3; @%p1 mov.b64 %rd1, %d;\n\
         @!%p1 bra $E; ld.global.v2.b32 {%r2, %r3}, [%rd1]; st.global.b32 [%rd1+4], 9;\n$E:",
    );
    let mut data = [0; 2];
    launch(&module, [1; 3], [32, 1, 1], &mut data).expect("the other lanes are elsewhere");
    assert_eq!(data, [0, 9]);
}

#[test]
fn misaligned_addresses() {
    for (instruction, bytes) in
        [("ld.global.b32 %r1, [%d+2];", 4), ("st.global.v4.b32 [%d+8], {%r1, %r1, %r1, %r1};", 16)]
    {
        let error = launch(&kernel("", instruction), [1; 3], [32, 1, 1], &mut [0; 64]).expect_err("misaligned");
        assert!(matches!(error, ExecError::Misaligned { bytes: b, .. } if b == bytes), "{error}");
    }
}

#[test]
fn shared_memory_has_an_end() {
    let module = kernel(
        ".shared .align 4 .b8 box[64];",
        "mov.b64 %rd1, box; st.shared.b32 [%rd1+60], 1; st.shared.b32 [%rd1+64], 1;",
    );
    let error = launch(&module, [1; 3], [32, 1, 1], &mut [0]).expect_err("one word too far");
    assert!(matches!(error, ExecError::IllegalAddress { space: Space::Shared, address: 64, .. }), "{error}");
}

#[test]
fn a_trap() {
    let module = kernel("", "mov.u32 %r1, %ctaid.x; setp.ne.b32 %p1, %r1, 2; @%p1 bra $E; trap; $E:");
    let error = launch(&module, [3, 1, 1], [32, 1, 1], &mut [0]).expect_err("the last block traps");
    assert!(matches!(error, ExecError::Trap { fault } if fault.block == [2, 0, 0]), "{error}");
}

#[test]
fn a_product_with_lanes_elsewhere() {
    let module = kernel(
        "",
        "mov.u32 %r1, %tid.x; setp.eq.b32 %p1, %r1, 5; @%p1 bra $E;\n\
         mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r2,%r3,%r4,%r5}, {%r6,%r7}, {%r8}, {%r2,%r3,%r4,%r5};\n$E: bar.sync 0;",
    );
    let error = launch(&module, [1; 3], [32, 1, 1], &mut [0]).expect_err("lane 5 is not there");
    assert!(matches!(error, ExecError::Diverged { mask: 0xffff_ffdf, .. }), "{error}");
}

#[test]
fn launches_that_the_kernel_forbids() {
    let text = ".version 8.7\n.target sm_90\n.visible .entry k() .reqntid 32, 2, 1 { ret; }\n.visible .entry m() .maxntid 64 { ret; }";
    let module = Module::parse(text).expect("well formed");
    let run = |name: &str, grid, block, params: &[u8]| {
        let launch = kiln_cuda_sim::ptx::Launch { grid, block, shared: 0, params, globals: &[] };
        let memory = kiln_cuda_sim::ptx::Buffers::default();
        module.kernel(name).expect("the kernel").run(&launch, &memory, &kiln_cuda_sim::ptx::Limits::default())
    };
    assert_eq!(run("k", [2, 1, 1], [32, 2, 1], &[]).expect("as compiled").blocks, 2);
    assert!(run("m", [1; 3], [16, 1, 1], &[]).is_ok());
    let refused = [
        run("k", [1; 3], [64, 1, 1], &[]),
        run("m", [1; 3], [65, 1, 1], &[]),
        run("m", [1; 3], [0, 1, 1], &[]),
        run("m", [0, 1, 1], [1, 1, 1], &[]),
        run("m", [1; 3], [1, 1, 1], &[0; 4]),
    ];
    for result in refused {
        assert!(matches!(result, Err(ExecError::InvalidLaunch { .. })), "{result:?}");
    }
}

#[test]
fn instructions_that_are_not_there_are_named() {
    let parse = |body: &str| {
        let text = format!(
            ".version 8.7\n.target sm_90\n.visible .entry k()\n{{\n.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;\n{body}\nret;\n}}"
        );
        Module::parse(&text).expect_err("refused")
    };
    for opcode in [
        "cp.async.bulk.shared",
        "wgmma.fence.sync.aligned",
        "add.f8",
        "fma.rn.f32.relu",
        "tex.1d.v4.f32",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
    ] {
        assert_eq!(
            parse(&format!("{opcode} %r1, %r2;")),
            PtxError::UnknownInstruction { line: 6, instruction: opcode.into() }
        );
    }
    assert!(matches!(parse("bra $NOWHERE;"), PtxError::UnknownName { line: 6, .. }));
    assert!(matches!(parse("add.s32 %r1, %r2, %q3;"), PtxError::UnknownName { line: 6, .. }));
    assert!(matches!(parse("add.s64 %rd1, %rd2, %r3;"), PtxError::Operand { line: 6, .. }));
    assert!(matches!(parse("add.s32 %r1;"), PtxError::Operand { line: 6, .. }));
    assert!(matches!(parse("bfe.u32 %r1, %r2;"), PtxError::Operand { line: 6, .. }));
    assert!(matches!(parse("add.s32 %r1, %r2"), PtxError::Syntax { .. }));
}
