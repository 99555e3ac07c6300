//! The scratch memory that threads keep, taken before anything is measured.

use std::cell::Cell;

use burn::tensor::{Device, Distribution, Tensor};

thread_local! {
    static WARM: Cell<bool> = const { Cell::new(false) };
}

/// Lets the threads of burn's CPU device take the scratch memory that they keep, so that it does not count as a step's: those that
/// share products, and the calling thread. Does nothing on a device with a pool, and the second time.
///
/// Matrix products keep a buffer of the size of the second-level cache for each thread that ever made a large one, and so it is taken by
/// whichever step is the first.
pub fn warm_threads(device: &Device) {
    if device.memory_pool_usage().is_some() || WARM.replace(true) {
        return;
    }
    let random = |shape| Tensor::<2>::random(shape, Distribution::Default, device);
    // Beyond 1,024 rows and columns, operands are packed in pieces. Such products are spread over the pool's threads; the small one is
    // the calling thread's alone.
    let (tall, wide) = (random([1100, 300]), random([300, 1100]));
    let (left, right) = (random([64, 64]), random([64, 1100]));
    for _ in 0..4 {
        drop(tall.clone().matmul(wide.clone()));
        drop(wide.clone().transpose().matmul(tall.clone().transpose()));
        drop(left.clone().matmul(right.clone()));
        drop(right.clone().transpose().matmul(left.clone()));
    }
}
