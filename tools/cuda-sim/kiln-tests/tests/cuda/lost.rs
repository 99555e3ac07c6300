//! How the device reports a tensor that was never written, and where it does not report it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Tensor};
use kiln_data::{ImageBatch, Normalize};
use kiln_recovery::{Failure, Kind, Probe};

use crate::run::device;
use crate::sim::{Card, Count, Refuse, in_wgsl, on_wgpu, with_card};

const SIDE: usize = 1 << 10;

/// Whether a page was refused. On CUDA, CubeCL frees memory and asks once more, which is refused too.
fn was_refused(count: Count) -> bool {
    if on_wgpu() { count.refused > 0 } else { count.refused == 2 }
}

/// A tensor of 4 MiB whose page was refused.
fn lost(card: &Card, device: &Device) -> Tensor<2> {
    // The device is busy, and has the memory that it needs for itself.
    assert_eq!(probed(&Tensor::<1>::ones([4], device)), None);
    let (tensor, count) = card.refusing(Refuse::Pages(&[1]), || {
        device.memory_persistent_allocations((), |()| {
            let tensor = Tensor::<2>::ones([SIDE, SIDE], device);
            // The device reports no error.
            device.sync().unwrap();
            tensor
        })
    });
    assert!(was_refused(count));
    tensor
}

fn probed<const D: usize>(tensor: &Tensor<D>) -> Option<Failure> {
    let mut probe = Probe::new();
    probe.add(tensor);
    probe.finish().err().map(|error| Failure::from_device(&error).unwrap())
}

#[test]
fn what_was_never_written_is_known_by_every_way_of_asking() {
    with_card(&[], |card| {
        let device = device().inner();
        let lost = lost(card, &device);
        let by_panic = catch_unwind(AssertUnwindSafe(|| lost.clone().into_data())).unwrap_err();
        let ways = [
            probed(&lost),
            lost.try_to_data().err().and_then(|error| Failure::from_device(&error)),
            Failure::from_panic(by_panic.as_ref()),
            // A result that was computed from it.
            probed(&lost.clone().sum()),
            probed(&(lost.clone().slice([0..4, 0..4]) + Tensor::ones([4, 4], &device))),
            probed(&Tensor::<2>::ones([8, 4], &device).slice_assign([0..4, 0..4], lost.clone().slice([0..4, 0..4]))),
        ];
        for (way, failure) in ways.into_iter().enumerate() {
            let failure = failure.unwrap_or_else(|| panic!("way {way} finds nothing"));
            // In WGSL, wgpu makes the buffers, whose errors do not say how much was asked for.
            let bytes = Some(4 << 20).filter(|_| !in_wgsl());
            assert_eq!((failure.kind(), failure.bytes()), (Kind::OutOfMemory, bytes), "way {way}: {failure}");
        }
        // The device still works.
        let fresh = Tensor::<1>::ones([4], &device) + 1.0;
        assert_eq!(fresh.try_into_data().unwrap().try_to_vec::<f32>().unwrap(), [2.0; 4]);
    });
}

/// An uploaded batch is read in every attempt: one whose memory was refused would fail all of them.
#[test]
fn a_batch_that_could_not_be_copied_ahead_is_copied_when_it_is_needed() {
    with_card(&[], |card| {
        let device = device().inner();
        let shape = [1, 1, SIDE, SIDE];
        let bytes: Vec<u8> = (0..SIDE * SIDE).map(|i| (i % 251) as u8).collect();
        let batch = || ImageBatch { pixels: bytes.clone().into(), shape, labels: vec![3], ids: vec![0], mixed: None };
        // The device has the memory that it needs for itself.
        let first = batch().upload(&device);
        assert!(first.pixels.is_uploaded());

        let (late, count) = card
            .refusing(Refuse::Pages(&[1]), || device.memory_persistent_allocations((), |()| batch().upload(&device)));
        assert!(was_refused(count) && !late.pixels.is_uploaded());
        let plain = Normalize { mean: vec![0.0], std: vec![1.0] };
        let [first, late] = [first, late].map(|batch| {
            let (images, _) = batch.to_device(&plain, &device);
            images.try_into_data().unwrap().try_to_vec::<f32>().unwrap()
        });
        assert_eq!(first, late);
        let right = |(value, byte): (&f32, &u8)| (value - f32::from(*byte) / 255.0).abs() < 1e-6;
        assert!(late.iter().zip(&bytes).all(right));
    });
}

/// The reason why gradients are probed, and their squares summed, one by one. Parts that fusion gathers in one kernel are not hidden.
/// burn chooses these parts anew for every program.
#[test]
fn a_concatenation_can_hide_a_part_that_was_never_written_and_a_sum_does_not() {
    with_card(&[], |card| {
        let device = device().inner();
        let lost = lost(card, &device).slice([0..4, 0..5]);
        device.sync().unwrap();
        assert!(probed(&lost).is_some());

        let ones = || Tensor::<2>::ones([4, 5], &device);
        let both = Tensor::cat(vec![lost.clone(), ones()], 0);
        assert_eq!(probed(&both), None, "hidden");
        let values = both.try_into_data().unwrap().try_to_vec::<f32>().unwrap();
        assert_eq!(values[20..], [1.0; 20]);
        assert_ne!(values[..20], [1.0; 20], "never written");

        let sum = lost.square().sum() + ones().square().sum();
        assert_eq!(probed(&sum).unwrap().kind(), Kind::OutOfMemory);
    });
}
