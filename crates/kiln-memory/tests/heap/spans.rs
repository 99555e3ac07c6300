//! Peaks of spans that nest and overlap, and of the phases of a step.

use burn::tensor::{Device, Tensor};
use kiln_memory::{Meter, Phase, StepMeter, warm_thread, warm_threads};

use crate::HEAP;
use crate::alone;

const MIB: u64 = 1 << 20;
/// Bytes that the test harness and burn may allocate meanwhile.
const SLACK: u64 = MIB / 4;

#[track_caller]
fn assert_near(got: u64, expected: u64) {
    assert!(got.abs_diff(expected) <= SLACK, "{got} bytes, expected about {expected}");
}

/// Allocates and frees `mib` MiB.
fn allocate(mib: u64) {
    drop(std::hint::black_box(vec![1u8; (mib * MIB) as usize]));
}

fn meter() -> Meter {
    Meter::of(&Device::flex(), &HEAP)
}

#[test]
fn nested_and_overlapping_spans_have_their_own_peaks() {
    let _alone = alone();
    let meter = meter();
    let whole = meter.span();
    allocate(8);
    let inner = meter.span();
    assert_near(inner.peak_bytes(), 0);
    allocate(2);
    assert_near(inner.peak_bytes(), 2 * MIB);
    let overlapping = meter.span();
    allocate(4);
    assert_near(inner.peak_bytes(), 4 * MIB);
    drop(inner);
    allocate(3);
    assert_near(overlapping.peak_bytes(), 4 * MIB);
    assert_near(whole.peak_bytes(), 8 * MIB);
    allocate(16);
    for span in [&whole, &overlapping] {
        assert_near(span.peak_bytes(), 16 * MIB);
    }
}

#[test]
fn a_reset_of_the_allocator_is_lost_on_no_span() {
    let _alone = alone();
    let meter = meter();
    let span = meter.span();
    allocate(8);
    HEAP.reset_peak();
    allocate(1);
    assert_near(span.peak_bytes(), 8 * MIB);
    let other = self::meter();
    let second = other.span();
    allocate(2);
    assert_near(second.peak_bytes(), 2 * MIB);
    assert_near(span.peak_bytes(), 8 * MIB);
}

#[test]
fn clones_share_the_baseline() {
    let _alone = alone();
    let meter = meter();
    let clone = meter.clone();
    let kept = std::hint::black_box(vec![1u8; 4 << 20]);
    assert_near(clone.live_bytes(), 4 * MIB);
    meter.exclude(4 * MIB);
    assert_near(clone.live_bytes(), 0);
    let span = clone.span();
    drop(kept);
    assert_near(span.peak_bytes(), 0);
}

#[test]
fn a_step_within_a_span_is_measured_phase_by_phase() {
    let _alone = alone();
    let (meter, device) = (meter(), Device::flex());
    let span = meter.span();
    let mut step = StepMeter::start(&meter);
    let mut hold = vec![];
    for (phase, mib) in [(Phase::Forward, 8), (Phase::Backward, 2), (Phase::Optimizer, 1)] {
        step.enter(phase);
        allocate(mib);
        hold.push(Tensor::<1>::ones([(MIB / 4) as usize], &device));
    }
    drop(hold);
    let measured = step.finish();
    let peaks: Vec<u64> = measured.phases.iter().map(|phase| phase.peak_bytes).collect();
    for (peak, expected) in peaks.into_iter().zip([8, 3, 3]) {
        assert!(peak.abs_diff(expected * MIB) <= MIB + SLACK, "{peak} bytes, expected about {expected} MiB");
    }
    assert_near(measured.peak_bytes, 8 * MIB);
    assert_near(span.peak_bytes(), 8 * MIB);
    assert!(measured.samples.len() >= 6);
}

#[test]
fn a_step_that_fails_leaves_nothing_behind() {
    let _alone = alone();
    let meter = meter();
    let fails = || -> Result<(), &str> {
        let mut step = StepMeter::start(&meter);
        step.enter(Phase::Forward);
        Err("the step fails, and is not finished")
    };
    // A thread of the first failure may take memory that the system keeps for the next thread.
    fails().unwrap_err();
    let before = HEAP.live_bytes();
    for _ in 0..50 {
        fails().unwrap_err();
    }
    // The samples of a thread that does not end would take 96 KiB.
    assert_near(HEAP.live_bytes() as u64, before as u64);
    // The spans are closed as well.
    allocate(2);
    assert_near(meter.span().peak_bytes(), 0);
}

#[test]
fn threads_that_are_warm_take_no_scratch_memory() {
    let _alone = alone();
    let device = Device::flex();
    warm_threads(&device);
    let before = HEAP.live_bytes() as u64;
    for _ in 0..3 {
        warm_thread(&device);
        rayon::broadcast(|_| warm_thread(&device));
    }
    assert_near(HEAP.live_bytes() as u64, before);
}

/// Whether the process is the one that [`a_step_is_measured_where_no_thread_can_be_started`] starts.
const WITHOUT_THREADS: &str = "KILN_TEST_WITHOUT_THREADS";

#[test]
fn a_step_is_measured_where_no_thread_can_be_started() {
    if std::env::var_os(WITHOUT_THREADS).is_none() {
        // No thread gets a stack of this size.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "spans::a_step_is_measured_where_no_thread_can_be_started", "--nocapture"])
            .env(WITHOUT_THREADS, "1")
            .env("RUST_MIN_STACK", (1_u64 << 60).to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| {}).is_err(), "a thread can be started");
    let meter = Meter::of_heap(&HEAP);
    let mut step = StepMeter::start(&meter);
    step.enter(Phase::Forward);
    allocate(8);
    step.enter(Phase::Backward);
    let measured = step.finish();
    assert_near(measured.peak_bytes, 8 * MIB);
    assert_eq!(measured.phases.len(), 2);
    assert_eq!(measured.samples.len(), 4, "those of the beginnings and ends of phases");
    assert_eq!(kiln_memory::thread_scratch_bytes(&Device::flex(), &meter), 0);
}
