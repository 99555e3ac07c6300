//! What a recording leaves behind.

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use kiln_memory::{StepOptions, StepTrace, record_step};

use crate::{HEAP, alone};

fn record() -> StepTrace {
    let linears = |device: &Device| (0..40).map(|_| LinearConfig::new(8, 8).init(device)).collect::<Vec<_>>();
    let forward = |model: &Vec<Linear>, recorder: &kiln_memory::Recorder| {
        let input = Tensor::<2>::zeros([recorder.batch(), 8], recorder.device());
        model.iter().fold(input, |value, layer| layer.forward(value)).mean()
    };
    record_step(linears, forward, &AdamWConfig::new().build(), StepOptions::default()).unwrap()
}

/// burn keeps the graph of tensors that are alive, and goes over it in each backward pass.
#[test]
fn nothing_is_left_of_a_step_whose_trace_is_dropped() {
    let _alone = alone();
    drop(record()); // burn's tables have their size
    let bytes = || {
        drop(record());
        // The end of a backward pass drops what is left of graphs before it.
        let device = Device::flex().autodiff();
        for _ in 0..20 {
            let _ = Tensor::<1>::ones([4], &device).require_grad().sum().backward();
        }
        HEAP.live_bytes()
    };
    let first = bytes();
    let last = (0..10).fold(first, |_, _| bytes());
    let more = last.saturating_sub(first);
    assert!(more < 16 << 10, "{more} bytes more after ten recordings");
}
