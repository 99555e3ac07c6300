//! The counts of an installed allocator.

use crate::HEAP;
use crate::alone;

const MIB: usize = 1 << 20;
/// Bytes that the test harness may allocate meanwhile.
const SLACK: usize = MIB / 4;

#[track_caller]
fn assert_near(got: usize, expected: usize) {
    assert!(got.abs_diff(expected) <= SLACK, "{got} bytes, expected about {expected}");
}

#[test]
fn live_and_peak_follow_allocation_growth_shrinking_and_release() {
    let _alone = alone();
    let baseline = HEAP.live_bytes();
    let live = || HEAP.live_bytes().saturating_sub(baseline);
    let peak = || HEAP.peak_bytes().saturating_sub(baseline);
    HEAP.reset_peak();

    let mut buffer: Vec<u8> = Vec::with_capacity(4 * MIB);
    assert_near(live(), 4 * MIB);
    buffer.reserve_exact(16 * MIB); // grows by realloc
    assert_near(live(), 16 * MIB);
    buffer.shrink_to(2 * MIB); // shrinks by realloc
    assert_near(live(), 2 * MIB);
    assert_near(peak(), 16 * MIB);

    let zeroed = std::hint::black_box(vec![0u64; MIB]);
    assert_near(live(), 10 * MIB);
    drop((buffer, zeroed));
    assert_near(live(), 0);
    assert_near(peak(), 16 * MIB);

    HEAP.reset_peak();
    assert_near(peak(), 0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| drop(std::hint::black_box(vec![0u8; MIB])));
        }
    });
    assert_near(live(), 0);
    assert!(peak() >= MIB && peak() <= 4 * MIB + SLACK, "{}", peak());
}
