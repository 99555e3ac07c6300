//! Loads, stores, atomic operations and address spaces.

use super::{each_lane, kernel, launch, launch_within};
use kiln_cuda_sim::ptx::{Buffers, Launch, Limits, Module};

#[test]
fn vectors_of_every_kind() {
    for count in [2, 4] {
        let names = |first: usize| (first..first + count).map(|j| format!("%r{j}")).collect::<Vec<_>>().join(", ");
        let reverse = (10..10 + count).rev().map(|j| format!("%r{j}")).collect::<Vec<_>>().join(", ");
        let body = format!(
            "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, {}; add.s64 %rd1, %d, %rd1;\n\
             ld.global.nc.v{count}.b32 {{{}}}, [%rd1]; st.global.v{count}.b32 [%rd1], {{{reverse}}};",
            4 * count,
            names(10)
        );
        // 40 threads: the second warp has lanes that never run
        let mut data: Vec<u32> = (0..40 * count as u32).collect();
        launch(&kernel("", &body), [1; 3], [40, 1, 1], &mut data).expect("runs");
        for (t, chunk) in data.chunks(count).enumerate() {
            let expected: Vec<u32> = (0..count).rev().map(|j| (t * count + j) as u32).collect();
            assert_eq!(chunk, expected);
        }
    }
}

#[test]
fn small_values_are_extended() {
    let word = 0x8182_8384;
    let at = |load: &str| each_lane(&format!("{load} %r0, [%rd91];"), [word; 32]);
    assert_eq!(at("ld.global.u8"), [0x84; 32]);
    assert_eq!(at("ld.global.s8"), [0xffff_ff84; 32]);
    assert_eq!(at("ld.global.u16"), [0x8384; 32]);
    assert_eq!(at("ld.global.s16"), [0xffff_8384; 32]);
    assert_eq!(each_lane("ld.global.v4.u8 {%r2, %r3, %r4, %r5}, [%rd91]; mov.b32 %r0, %r4;", [word; 32]), [0x82; 32]);
    assert_eq!(each_lane("st.global.b8 [%rd91+1], 255; ld.global.b32 %r0, [%rd91];", [word; 32]), [0x8182_ff84; 32]);
}

#[test]
fn each_thread_has_its_own_local_memory() {
    let module = kernel(
        ".local .align 8 .b8 depot[16];",
        "mov.u32 %r1, %tid.x; mov.b64 %rd1, depot; cvta.local.u64 %rd2, %rd1;\n\
         st.local.b32 [%rd1+4], %r1; bar.sync 0; ld.b32 %r2, [%rd2+4]; add.s32 %r3, %r2, 1; st.b32 [%rd2+8], %r3;\n\
         ld.local.b32 %r4, [depot+8]; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %d, %rd3; st.b32 [%rd3], %r4;",
    );
    let mut data = [0; 96];
    launch(&module, [1; 3], [96, 1, 1], &mut data).expect("runs");
    assert_eq!(data, std::array::from_fn(|t| t as u32 + 1));
}

#[test]
fn generic_addresses_of_shared_memory() {
    let module = kernel(
        ".shared .align 16 .b8 box[512];",
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; mov.b64 %rd1, box; cvta.shared.u64 %rd3, %rd1; add.s64 %rd3, %rd3, %rd2;\n\
         st.b32 [%rd3], %r1; bar.sync 0; cvta.to.shared.u64 %rd4, %rd3; xor.b64 %rd4, %rd4, 4; ld.shared.b32 %r2, [%rd4];\n\
         add.s64 %rd5, %d, %rd2; st.global.b32 [%rd5], %r2;",
    );
    let mut data = [0; 64];
    launch(&module, [1; 3], [64, 1, 1], &mut data).expect("runs");
    assert_eq!(data, std::array::from_fn(|t| t as u32 ^ 1));
}

#[test]
fn atomic_operations_from_many_blocks() {
    let module = kernel(
        "",
        "mov.u32 %r1, %tid.x; atom.global.add.u32 %r2, [%d], 1; red.global.max.u32 [%d+4], %r1; atom.global.add.f32 %r3, [%d+8], 0f3F000000;\n\
         $S: ld.volatile.global.b32 %r5, [%d+12]; add.s32 %r6, %r5, 2; atom.global.cas.b32 %r7, [%d+12], %r5, %r6; setp.ne.b32 %p1, %r7, %r5; @%p1 bra $S;\n\
         atom.global.inc.u32 %r8, [%d+16], 6; atom.global.and.b32 %r9, [%d+20], 0xfff0;",
    );
    let mut data = [0, 0, 0, 0, 0, 0xabcd];
    launch(&module, [50, 2, 1], [64, 1, 1], &mut data).expect("runs");
    assert_eq!(data, [6400, 63, 3200.0_f32.to_bits(), 12800, 6400 % 7, 0xabc0]);
}

#[test]
fn an_atomic_operation_gives_the_value_before() {
    let mut seen = {
        let module = kernel(
            "",
            "mov.u32 %r1, %tid.x; atom.global.add.u32 %r2, [%d+128], 1; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %d, %rd1; st.global.b32 [%rd1], %r2;",
        );
        let mut data = [0; 33];
        launch(&module, [1; 3], [32, 1, 1], &mut data).expect("runs");
        data[..32].to_vec()
    };
    seen.sort_unstable();
    assert_eq!(seen, (0..32).collect::<Vec<_>>());
}

#[test]
fn parameters_by_name_and_by_address() {
    let text = ".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out, .param .align 8 .b8 info[24], .param .b8 flag)\n\
                { .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %rs<9>;\n\
                ld.param.b64 %rd1, [out]; ld.param.v2.b32 {%r1, %r2}, [info+8]; mov.b64 %rd2, info; ld.param.b32 %r3, [%rd2+20];\n\
                ld.param.u8 %rs1, [flag]; cvt.u32.u16 %r4, %rs1; st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4}; ret; }";
    let module = Module::parse(text).expect("well formed");
    let kernel = module.kernel("k").expect("the kernel");
    let offsets: Vec<_> = kernel.params().iter().map(|p| (p.offset, p.bytes)).collect();
    assert_eq!((offsets.as_slice(), kernel.param_bytes()), ([(0, 8), (8, 24), (32, 1)].as_slice(), 33));
    let mut memory = Buffers::default();
    let out = memory.allocate(16);
    let mut params = out.to_le_bytes().to_vec();
    params.extend((0..6_u32).flat_map(|v| (v * 11).to_le_bytes()));
    params.push(200);
    let launch = Launch { grid: [1; 3], block: [1, 1, 1], shared: 0, params: &params, globals: &[] };
    kernel.run(&launch, &memory, &Limits::default()).expect("runs");
    let found: Vec<u32> =
        memory.read(out, 16).chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four"))).collect();
    assert_eq!(found, [22, 33, 55, 200]);
}

#[test]
fn shared_memory_of_each_block_begins_as_the_limits_say() {
    // Each block reads a word that it has not written, and then writes it.
    let module = kernel(
        ".shared .align 4 .b8 box[4];",
        "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %d, %rd1; mov.b64 %rd2, box;\n\
         ld.shared.b32 %r2, [%rd2]; st.global.b32 [%rd1], %r2; st.shared.b32 [%rd2], 7;",
    );
    for (shared_fill, expected) in [(0, 0), (0xff, u32::MAX)] {
        let limits = Limits { threads: 1, shared_fill, ..Limits::default() };
        let mut data = [1; 3];
        launch_within(&module, [3, 1, 1], [1; 3], &mut data, &limits).expect("runs");
        assert_eq!(data, [expected; 3]);
    }
}

#[test]
fn dynamic_shared_memory_lies_behind_the_static_one() {
    let text = ".version 8.7\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 pool[];\n.visible .entry k(.param .u64 out)\n\
                { .reg .b32 %r<9>; .reg .b64 %rd<9>; .shared .align 4 .b8 fixed[20];\n\
                ld.param.b64 %rd1, [out]; mov.b64 %rd2, pool; mov.b64 %rd3, fixed; st.shared.b32 [%rd2], 5; st.shared.b32 [%rd3+16], 6;\n\
                sub.s64 %rd4, %rd2, %rd3; st.global.b64 [%rd1], %rd4; ld.shared.b32 %r1, [pool]; st.global.b32 [%rd1+8], %r1; st.shared.b32 [pool+60], 1; ret; }";
    let module = Module::parse(text).expect("well formed");
    let mut memory = Buffers::default();
    let out = memory.allocate(16);
    let run = |shared| {
        let launch = Launch { grid: [1; 3], block: [1, 1, 1], shared, params: &out.to_le_bytes(), globals: &[] };
        module.kernel("k").expect("the kernel").run(&launch, &memory, &Limits::default())
    };
    run(64).expect("runs");
    assert_eq!(memory.read(out, 12), [32, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
    run(60).expect_err("a store behind the end of shared memory");
}

#[test]
fn variables_of_the_module() {
    let text = ".version 8.7\n.target sm_90\n.address_size 64\n.global .align 4 .u32 table[3] = {5, 6, 7};\n.const .align 4 .b32 one = 1;\n\
                .visible .entry k(.param .u64 out)\n{ .reg .b32 %r<9>; .reg .b64 %rd<9>;\n\
                ld.param.b64 %rd1, [out]; mov.b64 %rd2, table; ld.global.b32 %r1, [%rd2+8]; ld.const.b32 %r2, [one]; add.s32 %r1, %r1, %r2; st.global.b32 [%rd1], %r1; ret; }";
    let module = Module::parse(text).expect("well formed");
    let mut memory = Buffers::default();
    let addresses: Vec<u64> = module.globals().iter().map(|g| memory.upload(&g.init)).collect();
    assert!(module.globals()[1].constant && module.globals()[0].bytes == 12);
    let out = memory.allocate(4);
    let params = out.to_le_bytes();
    let launch = Launch { grid: [1; 3], block: [1, 1, 1], shared: 0, params: &params, globals: &addresses };
    let kernel = module.kernel("k").expect("the kernel");
    kernel.run(&launch, &memory, &Limits::default()).expect("runs");
    assert_eq!(memory.read(out, 4), [8, 0, 0, 0]);
    kernel
        .run(&Launch { globals: &[], ..launch }, &memory, &Limits::default())
        .expect_err("no address for the variable");
}
