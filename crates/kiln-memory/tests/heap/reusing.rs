//! The allocator that keeps freed memory, installed in this process.

use std::hint::black_box;

use proptest::prelude::*;

use crate::{HEAP, alone};

const MIB: usize = 1 << 20;

/// Bytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn blocks_keep_their_contents_and_new_ones_are_zeros(
        sizes in prop::collection::vec((1_usize..3 * MIB, 1_usize..3 * MIB, 0_usize..8), 1..40),
    ) {
        let _alone = alone();
        let mut blocks: Vec<(u8, Vec<u8>)> = vec![];
        for (number, (size, other, place)) in sizes.into_iter().enumerate() {
            let mark = number as u8 + 1;
            let mut block = black_box(vec![0_u8; size]);
            prop_assert!(block.iter().all(|byte| *byte == 0));
            block.fill(mark);
            block.resize(other, mark); // grows or shrinks
            block.shrink_to_fit();
            prop_assert!(block.len() == other && block.iter().all(|byte| *byte == mark));
            blocks.push((mark, block));
            if place < blocks.len() {
                let (mark, block) = blocks.swap_remove(place);
                prop_assert!(block.iter().all(|byte| *byte == mark));
            }
        }
        prop_assert!(blocks.iter().all(|(mark, block)| block.iter().all(|byte| byte == mark)));
    }
}

#[test]
fn threads_have_blocks_of_their_own() {
    let _alone = alone();
    std::thread::scope(|scope| {
        for mark in 1..=4_u8 {
            scope.spawn(move || {
                for round in 0..200 {
                    let block = black_box(vec![mark; 64 * 1024 + 4096 * (round % 50)]);
                    assert!(block.iter().all(|byte| *byte == mark));
                }
            });
        }
    });
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn a_process_holds_what_was_in_use_at_most() {
    let _alone = alone();
    let before = resident();
    let all = 96 * MIB;
    let mut kept: Vec<Vec<u8>> = vec![];
    // Blocks of each size do not fit between those that are left of the last one.
    for size in [MIB, 3 * MIB, 5 * MIB / 2, 7 * MIB, 96 * 1024, 2 * MIB] {
        let blocks: Vec<Vec<u8>> = (0..all / size).map(|_| black_box(vec![1; size])).collect();
        let took = resident().saturating_sub(before);
        assert!(took < all + all / 3 + 8 * MIB, "blocks of {size}: {took} bytes");
        kept = blocks.into_iter().step_by(3).collect();
    }
    drop(kept);
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn pages_of_freed_blocks_are_kept_until_they_are_released() {
    let _alone = alone();
    HEAP.inner().release(); // what earlier tests have left
    let before = resident();
    drop(black_box(vec![1_u8; 64 * MIB]));
    assert!(resident() > before + 48 * MIB);
    HEAP.inner().release();
    let left = resident().saturating_sub(before);
    assert!(left < 8 * MIB, "{left} bytes");
    // The next block takes its place, and is not kept beyond what is in use.
    drop(black_box(vec![1_u8; 8 * MIB]));
    let left = resident().saturating_sub(before);
    assert!(left < 16 * MIB, "{left} bytes");
}
