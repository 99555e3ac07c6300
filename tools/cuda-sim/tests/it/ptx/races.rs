//! Races: accesses of the same byte that nothing orders.

use super::{kernel, launch_within};
use kiln_cuda_sim::ptx::{ExecError, Limits, Space};

/// The race of `threads` threads in each of two blocks, if there is one. `%r1` is the thread, `%rd1` the address of its word in shared
/// memory, `%rd2` that of its neighbour's in the next warp, `%rd3` that of the next lane, `%rd4` its word in device memory.
fn race(body: &str, threads: u32) -> Option<(String, Space)> {
    let module = kernel(
        ".shared .align 4 .b8 box[512];",
        &format!(
            "mov.u32 %r1, %tid.x; mov.u32 %r9, %ctaid.x; mov.b64 %rd9, box;\n\
             mul.wide.u32 %rd8, %r1, 4; add.s64 %rd1, %rd9, %rd8;\n\
             xor.b32 %r2, %r1, 32; mul.wide.u32 %rd8, %r2, 4; add.s64 %rd2, %rd9, %rd8;\n\
             xor.b32 %r2, %r1, 1; mul.wide.u32 %rd8, %r2, 4; add.s64 %rd3, %rd9, %rd8;\n\
             mad.lo.s32 %r2, %r9, 64, %r1; mul.wide.u32 %rd8, %r2, 4; add.s64 %rd4, %d, %rd8;\n{body}"
        ),
    );
    let found = [None, Some(1), Some(2)].map(|order| {
        let limits = Limits { threads: 1, races: true, order, ..Limits::default() };
        match launch_within(&module, [2, 1, 1], [threads, 1, 1], &mut [0; 128], &limits) {
            Ok(_) => None,
            Err(ExecError::Race { what, space, .. }) => Some((what.to_owned(), space)),
            Err(other) => panic!("{other}"),
        }
    });
    // Which of the accesses comes last depends on the order, whether they race does not.
    assert!(found.iter().all(|race| race.is_some() == found[0].is_some()), "{found:?}");
    let unchecked = Limits { threads: 1, ..Limits::default() };
    launch_within(&module, [2, 1, 1], [threads, 1, 1], &mut [0; 128], &unchecked).expect("nobody looks for races");
    found[0].clone()
}

fn shared(what: &str) -> Option<(String, Space)> {
    Some((what.to_owned(), Space::Shared))
}

#[test]
fn warps_need_a_barrier_between_a_store_and_a_load() {
    let store = "st.shared.b32 [%rd1], %r1;";
    assert_eq!(race(&format!("{store} ld.shared.b32 %r3, [%rd2];"), 64), shared("writes"));
    assert_eq!(race(&format!("{store} bar.warp.sync -1; ld.shared.b32 %r3, [%rd2];"), 64), shared("writes"));
    assert_eq!(race(&format!("{store} bar.sync 0; ld.shared.b32 %r3, [%rd2];"), 64), None);
    // And another one before the next store.
    let again = format!("{store} bar.sync 0; ld.shared.b32 %r3, [%rd2]; {store}");
    assert_eq!(race(&again, 64), shared("reads"));
    let ordered = format!("{store} bar.sync 0; ld.shared.b32 %r3, [%rd2]; bar.sync 0; {store}");
    assert_eq!(race(&ordered, 64), None);
}

#[test]
fn lanes_of_a_warp_need_to_wait_for_each_other() {
    let store = "st.shared.b32 [%rd1], %r1;";
    assert_eq!(race(&format!("{store} ld.shared.b32 %r3, [%rd3];"), 32), shared("reads"));
    assert_eq!(
        race(&format!("{store} shfl.sync.idx.b32 %r4, %r1, 0, 31, -1; ld.shared.b32 %r3, [%rd3];"), 32),
        shared("reads")
    );
    assert_eq!(race(&format!("{store} bar.warp.sync -1; ld.shared.b32 %r3, [%rd3];"), 32), None);
    assert_eq!(race(&format!("{store} ld.shared.b32 %r3, [%rd1];"), 32), None);
}

#[test]
fn lanes_that_wait_at_different_places_are_ordered() {
    // Odd lanes store and wait in a branch of their own; even ones wait and load.
    let body = "and.b32 %r3, %r1, 1; setp.eq.b32 %p1, %r3, 0; @%p1 bra $E;\n\
                st.shared.b32 [%rd1], 1; bar.warp.sync -1; bra.uni $X;\n\
                $E: bar.warp.sync -1; ld.shared.b32 %r4, [%rd3];\n$X:";
    assert_eq!(race(body, 32), None);
}

#[test]
fn blocks_share_device_memory_without_order() {
    assert_eq!(race("st.global.b32 [%rd4], 1; ld.global.b32 %r3, [%rd4];", 64), None);
    let one = "st.global.b32 [%d], %r1;";
    assert_eq!(race(one, 1), None);
    assert_eq!(race("st.global.b32 [%d], %r9;", 1), Some(("writes".to_owned(), Space::Global)));
    assert_eq!(race("ld.global.b32 %r3, [%d]; st.global.b32 [%rd4+4], 1;", 1), None);
    let read_by_others = "ld.global.b32 %r3, [%d]; setp.eq.b32 %p1, %r9, 0; @%p1 st.global.b32 [%d], 1;";
    assert_eq!(race(read_by_others, 1), Some(("reads".to_owned(), Space::Global)));
}

#[test]
fn stores_of_one_value_do_not_race() {
    assert_eq!(race("st.shared.b32 [%rd9], 5;", 64), None);
    assert_eq!(race("st.global.b32 [%d], 5;", 64), None);
    assert_eq!(race("st.shared.b32 [%rd9], %r1;", 64), shared("writes"));
    assert_eq!(race("st.shared.b32 [%rd9], 5; ld.shared.b32 %r3, [%rd9];", 64), shared("reads"));
}

#[test]
fn atomic_operations_do_not_race_with_each_other() {
    assert_eq!(race("atom.global.add.u32 %r3, [%d], 1;", 64), None);
    assert_eq!(race("atom.shared.add.u32 %r3, [%rd9], 1;", 64), None);
    assert_eq!(race("atom.shared.add.u32 %r3, [%rd9], 1; ld.shared.b32 %r4, [%rd9];", 64), shared("reads"));
    assert_eq!(race("atom.shared.add.u32 %r3, [%rd9], 1; bar.sync 0; ld.shared.b32 %r4, [%rd9];", 64), None);
}

#[test]
fn parts_of_a_word_are_bytes_of_their_own() {
    let bytes = "cvt.u64.u32 %rd5, %r1; add.s64 %rd5, %rd9, %rd5; st.shared.b8 [%rd5], %r1;";
    assert_eq!(race(bytes, 64), None);
    assert_eq!(race(&format!("{bytes} ld.shared.b32 %r3, [%rd9];"), 64), shared("reads"));
}

#[test]
fn matrices_are_of_the_whole_warp() {
    // Whichever lane holds an element, another one may have stored it.
    let store = "st.shared.b32 [%rd1], %r1;";
    let load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%rd6];";
    let rows = "and.b32 %r5, %r1, 7; mul.wide.u32 %rd6, %r5, 16; add.s64 %rd6, %rd9, %rd6;";
    assert_eq!(race(&format!("{rows} {store} {load}"), 32), shared("reads"));
    assert_eq!(race(&format!("{rows} {store} bar.warp.sync -1; {load}"), 32), None);
}

#[test]
fn a_random_order_gives_every_warp_its_turns() {
    let module = kernel(
        "",
        "mov.u32 %r1, %tid.x; mov.b32 %r2, 0; mov.b32 %r3, 0;\n\
         $L: add.s32 %r3, %r3, %r1; add.s32 %r2, %r2, 1; bar.sync 0; setp.lt.u32 %p1, %r2, 300; @%p1 bra $L;\n\
         mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %d, %rd1; st.global.b32 [%rd1], %r3;",
    );
    for order in [None, Some(0), Some(7)] {
        let limits = Limits { threads: 1, order, ..Limits::default() };
        let mut data = [0; 128];
        launch_within(&module, [1; 3], [128, 1, 1], &mut data, &limits).expect("runs");
        assert_eq!(data, std::array::from_fn(|thread| 300 * thread as u32));
    }
}
