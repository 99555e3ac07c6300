//! Lets threads take the scratch memory that they keep, before anything is measured.

use std::cell::Cell;

use burn::tensor::{Device, Tensor};

use super::meter::Meter;

thread_local! {
    static WARM: Cell<bool> = const { Cell::new(false) };
}

/// Lets the threads of burn's CPU device take the scratch memory that they keep, so that it does not count as a step's memory. These are
/// the threads that share matrix products, and the calling thread. Does nothing on a device with a pool, and nothing when it is called
/// again.
///
/// For each thread that ever computed a matrix product, a buffer of the size of the second-level cache is kept. Without this function,
/// the first step that a thread takes part in would take it, which may be any step on a busy machine.
pub fn warm_threads(device: &Device) {
    if device.memory_pool_usage().is_some() || WARM.replace(true) {
        return;
    }
    warm_thread(device);
    rayon::broadcast(|_| warm_thread(device));
}

/// Lets the calling thread take the scratch memory that matrix products on burn's CPU device keep until the thread ends.
pub fn warm_thread(device: &Device) {
    // The product is so small that it is not spread over other threads.
    drop(Tensor::<2>::ones([64, 64], device).matmul(Tensor::ones([64, 256], device)));
}

/// Bytes of scratch memory that a new thread takes in [`warm_thread`], as `meter` counts them; 0 if the system cannot start a thread.
/// Nothing else should allocate meanwhile.
pub fn thread_scratch_bytes(device: &Device, meter: &Meter) -> u64 {
    let measure = || {
        let before = meter.live_bytes();
        warm_thread(device);
        meter.live_bytes().saturating_sub(before)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, measure);
        thread.map_or(0, |thread| thread.join().unwrap_or(0))
    })
}
