//! Tensors that occupy the memory of a GPU, so that a step runs out of it.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use burn::tensor::{Device, Tensor};
use kiln_memory::GpuMemory;

/// Sizes of the pieces, largest first.
const PIECES: [u64; 6] = [4 << 30, 1 << 30, 256 << 20, 64 << 20, 16 << 20, 4 << 20];

/// Sizes of the tensors that fill the holes of pages, largest first. CubeCL has separate pages for 64 KiB and less.
const HOLES: [u64; 6] = [64 << 20, 16 << 20, 4 << 20, 1 << 20, 256 << 10, 128 << 10];

/// Tensors that occupy the memory of a GPU until they are dropped.
///
/// Each size of pieces has a thread of its own, and therefore a stream and a pool of its own: the pages of a pool are as large as its
/// largest allocation, and the step's pages must not change.
pub(crate) struct Ballast {
    threads: Vec<(Sender<()>, JoinHandle<()>)>,
    /// In pages of the stream on which they were made.
    holes: Vec<Tensor<1>>,
    pub(crate) bytes: u64,
}

impl Ballast {
    /// Allocates all but about `leave` bytes of the free memory of NVIDIA GPU number `card`.
    pub(crate) fn fill(device: &Device, gpu: u32, leave: u64) -> Result<Self> {
        let mut ballast = Self { threads: vec![], holes: vec![], bytes: 0 };
        for piece in PIECES {
            let (told, tell) = channel();
            let (release, released) = channel::<()>();
            let device = device.clone();
            let thread = std::thread::spawn(move || {
                let mut held: Vec<Tensor<1>> = vec![];
                while GpuMemory::of_nvidia(gpu).is_some_and(|memory| memory.free >= leave + piece) {
                    let Some(tensor) = written(&device, piece) else { break };
                    held.push(tensor);
                }
                let _ = told.send(held.len() as u64 * piece);
                // Ends when the sender is dropped.
                let _ = released.recv();
                drop(held);
                let _ = device.sync();
                device.memory_cleanup();
                let _ = device.sync();
            });
            ballast.threads.push((release, thread));
            ballast.bytes += tell.recv().context("a thread of the ballast ended early")?;
        }
        Ok(ballast)
    }

    /// Also fills the free parts of pages of the calling thread's stream: otherwise a step would use them although the GPU has no free
    /// memory.
    pub(crate) fn fill_holes(&mut self, device: &Device) {
        for piece in HOLES {
            while let Some(tensor) = written(device, piece) {
                self.holes.push(tensor);
                self.bytes += piece;
            }
        }
    }
}

/// Zeros of this many bytes, if there was memory for them.
fn written(device: &Device, bytes: u64) -> Option<Tensor<1>> {
    let tensor = Tensor::<1>::zeros([(bytes / 4) as usize], device);
    let there = device.sync().is_ok() && tensor.clone().narrow(0, 0, 1).try_into_data().is_ok();
    there.then_some(tensor)
}

impl Drop for Ballast {
    fn drop(&mut self) {
        self.holes.clear();
        for (release, thread) in self.threads.drain(..) {
            drop(release);
            let _ = thread.join();
        }
    }
}
