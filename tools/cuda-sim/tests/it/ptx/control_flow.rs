//! Diverged lanes, barriers, and lanes that end early.

use proptest::prelude::*;

use super::{each_lane, kernel, launch, launch_within};
use kiln_cuda_sim::ptx::{ExecError, Limits};

#[test]
fn arms_of_a_branch_meet_again() {
    // after the branch, all 32 lanes are active together
    let body = "and.b32 %r2, %r90, 3; setp.eq.b32 %p1, %r2, 0; @%p1 bra $A;\n\
                mov.b32 %r3, 7; bra.uni $J;\n$A: mov.b32 %r3, 9;\n$J: activemask.b32 %r4; add.s32 %r0, %r4, %r3;";
    let expected = std::array::from_fn(|l| u32::MAX.wrapping_add(if l % 4 == 0 { 9 } else { 7 }));
    assert_eq!(each_lane(body, [0; 32]), expected);
}

#[test]
fn lanes_leave_a_loop_one_by_one_and_meet_behind_it() {
    // lane l goes round l + 1 times; the block behind the loop is written before the loop's body
    let body = "mov.b32 %r2, 0; bra.uni $H;\n$X: activemask.b32 %r3; popc.b32 %r4, %r3; mul.lo.s32 %r4, %r4, 100;\n\
                add.s32 %r0, %r4, %r2; bra.uni $E;\n$H: add.s32 %r2, %r2, 1; setp.gt.u32 %p1, %r2, %r90; @%p1 bra $X;\n\
                bra.uni $H;\n$E:";
    assert_eq!(each_lane(body, [0; 32]), std::array::from_fn(|l| 3200 + l as u32 + 1));
}

#[test]
fn lanes_of_an_indexed_branch_go_to_their_labels_and_meet_again() {
    let body = "and.b32 %r2, %r90, 3; setp.lt.u32 %p1, %r90, 4; mov.b32 %r3, 0;\n\
                $T: .branchtargets $A, $B, $C, $A;\n@!%p1 brx.idx %r2, $T;\n@%p1 bra $J;\n\
                $A: mov.b32 %r3, 1; bra.uni $J;\n$B: mov.b32 %r3, 2; bra.uni $J;\n$C: mov.b32 %r3, 3;\n\
                $J: activemask.b32 %r4; add.s32 %r0, %r4, %r3;";
    let at = |lane: usize| [1, 2, 3, 1][lane % 4];
    let expected = std::array::from_fn(|lane| u32::MAX.wrapping_add(if lane < 4 { 0 } else { at(lane) }));
    assert_eq!(each_lane(body, [0; 32]), expected);
}

#[test]
fn a_guarded_instruction_runs_in_its_lanes_only() {
    let body = "setp.lt.u32 %p1, %r90, 5; mov.b32 %r0, 1; @%p1 mov.b32 %r0, 2; @!%p1 add.s32 %r0, %r0, 10;";
    assert_eq!(each_lane(body, [0; 32]), std::array::from_fn(|l| if l < 5 { 2 } else { 11 }));
}

#[test]
fn a_shuffle_waits_for_the_lanes_it_names() {
    // the two halves of the warp come to the same shuffle by different ways
    let body = "setp.lt.u32 %p1, %r90, 16; @%p1 bra $A;\nmov.b32 %r2, %r90; bra.uni $S;\n\
                $A: mul.lo.s32 %r2, %r90, 10;\n$S: shfl.sync.bfly.b32 %r0, %r2, 16, 31, -1;";
    assert_eq!(
        each_lane(body, [0; 32]),
        std::array::from_fn(|l| if l < 16 { l as u32 + 16 } else { (l as u32 - 16) * 10 })
    );
}

#[test]
fn lanes_that_ended_are_not_waited_for() {
    let module = kernel(
        "",
        "mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 20; @%p1 ret;\n\
         bar.warp.sync -1; bar.sync 0; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %d, %rd1;\n\
         shfl.sync.idx.b32 %r2, %r1, 3, 31, -1; st.global.b32 [%rd1], %r2;",
    );
    let mut data = [99; 64];
    launch(&module, [1; 3], [64, 1, 1], &mut data).expect("runs");
    assert_eq!(data[..20], [3; 20]);
    assert_eq!(data[20..], [99; 44]);
}

#[test]
fn a_sum_over_the_block_by_halving() {
    // a tree of barriers in a loop, 256 threads in 8 warps
    let module = kernel(
        ".shared .align 4 .b8 sums[1024];",
        "mov.u32 %r1, %tid.x; mov.u32 %r9, %ctaid.x; mad.lo.s32 %r8, %r9, 256, %r1; mul.wide.u32 %rd1, %r8, 4; add.s64 %rd1, %d, %rd1;\n\
         mul.wide.u32 %rd2, %r1, 4; mov.b64 %rd3, sums; add.s64 %rd4, %rd3, %rd2;\n\
         ld.global.b32 %r2, [%rd1]; st.shared.b32 [%rd4], %r2; mov.b32 %r3, 128;\n\
         $L: bar.sync 0; setp.ge.u32 %p1, %r1, %r3; @%p1 bra $N;\n\
         mul.wide.u32 %rd5, %r3, 4; add.s64 %rd6, %rd4, %rd5; ld.shared.b32 %r4, [%rd6]; ld.shared.b32 %r5, [%rd4];\n\
         add.s32 %r5, %r5, %r4; st.shared.b32 [%rd4], %r5;\n\
         $N: shr.u32 %r3, %r3, 1; setp.ne.b32 %p2, %r3, 0; @%p2 bra $L;\n\
         bar.sync 0; ld.shared.b32 %r6, [%rd3]; st.global.b32 [%rd1], %r6;",
    );
    let mut data: Vec<u32> = (0..256 * 5).collect();
    let sums: Vec<u32> = data.chunks(256).map(|c| c.iter().sum()).collect();
    launch(&module, [5, 1, 1], [256, 1, 1], &mut data).expect("runs");
    for (block, sum) in data.chunks(256).zip(sums) {
        assert!(block.iter().all(|v| *v == sum));
    }
}

#[test]
fn barriers_reached_by_different_ways() {
    // even and odd threads wait at two instructions; a barrier counts threads, not places
    let module = kernel(
        ".shared .align 4 .b8 box[256];",
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; mov.b64 %rd3, box; add.s64 %rd4, %rd3, %rd2; st.shared.b32 [%rd4], %r1;\n\
         and.b32 %r2, %r1, 1; setp.eq.b32 %p1, %r2, 0; @%p1 bra $A;\nbar.sync 0; bra.uni $J;\n$A: bar.sync 0;\n$J:\n\
         xor.b32 %r3, %r1, 33; mul.wide.u32 %rd5, %r3, 4; add.s64 %rd5, %rd3, %rd5; ld.shared.b32 %r4, [%rd5];\n\
         add.s64 %rd6, %d, %rd2; st.global.b32 [%rd6], %r4;",
    );
    let mut data = [0; 64];
    launch(&module, [1; 3], [64, 1, 1], &mut data).expect("runs");
    assert_eq!(data, std::array::from_fn(|t| t as u32 ^ 33));
}

#[test]
fn a_barrier_that_cannot_open_is_a_deadlock() {
    let module = kernel(
        "",
        "mov.u32 %r1, %tid.x; setp.eq.b32 %p1, %r1, 0; @%p1 bra $A; bar.sync 1, 64; bra.uni $E; $A: bar.sync 2, 64; $E:",
    );
    let error = launch(&module, [1; 3], [64, 1, 1], &mut [0; 4]).expect_err("hangs on a card");
    assert!(matches!(error, ExecError::Deadlock { fault } if fault.block == [0; 3] && fault.line > 0), "{error}");
}

#[test]
fn lanes_may_spin_for_lanes_of_their_own_warp() {
    // lane 0 waits in a loop, which stands first, for what the others write
    let module = kernel(
        "",
        "mov.u32 %r1, %tid.x; setp.ne.b32 %p1, %r1, 0; @%p1 bra $W;\n\
         $S: ld.volatile.global.b32 %r2, [%d]; setp.eq.b32 %p2, %r2, 0; @%p2 bra $S;\n\
         st.global.b32 [%d+4], 7; bra.uni $E;\n$W: st.volatile.global.b32 [%d], 1;\n$E:",
    );
    let mut data = [0; 2];
    let limits = Limits { max_instructions: 1 << 24, threads: 1, ..Limits::default() };
    launch_within(&module, [1; 3], [32, 1, 1], &mut data, &limits).expect("the others get their turn");
    assert_eq!(data, [1, 7]);
}

#[test]
fn warps_may_spin_for_each_other() {
    let module = kernel(
        "",
        "mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; @%p1 bra $W;\n\
         $S: ld.volatile.global.b32 %r2, [%d]; setp.eq.b32 %p2, %r2, 0; @%p2 bra $S;\n\
         st.global.b32 [%d+4], 7; bra.uni $E;\n$W: st.volatile.global.b32 [%d], 1;\n$E:",
    );
    let mut data = [0; 2];
    launch(&module, [1; 3], [64, 1, 1], &mut data).expect("the other warp gets its turn");
    assert_eq!(data, [1, 7]);
}

#[test]
fn an_endless_loop_is_stopped() {
    let module = kernel("", "$S: bra.uni $S;");
    for threads in [1, 2] {
        let limits = Limits { max_instructions: 10_000_000, threads, ..Limits::default() };
        let error = launch_within(&module, [4, 1, 1], [64, 1, 1], &mut [0], &limits).expect_err("never ends");
        assert_eq!(error, ExecError::TooManyInstructions { limit: 10_000_000 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Collatz steps of each lane's number: loops with a branch inside, all lanes leaving at different times.
    #[test]
    fn loops_with_branches(words in prop::array::uniform32(1_u32..5000)) {
        let body = "mov.b32 %r0, 0;\n$L: setp.eq.b32 %p1, %r1, 1; @%p1 bra $E; add.s32 %r0, %r0, 1; and.b32 %r2, %r1, 1;\n\
                    setp.ne.b32 %p2, %r2, 0; @%p2 bra $O; shr.u32 %r1, %r1, 1; bra.uni $L;\n\
                    $O: mad.lo.s32 %r1, %r1, 3, 1; bra.uni $L;\n$E:";
        let steps = |mut n: u32| { let mut c = 0; while n != 1 { n = if n % 2 == 1 { 3 * n + 1 } else { n / 2 }; c += 1; } c };
        prop_assert_eq!(each_lane(body, words), words.map(steps));
    }
}
