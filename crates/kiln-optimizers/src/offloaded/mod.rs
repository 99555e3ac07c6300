//! Any burn optimizer with its state in host memory, on typed parameters.

mod any;
mod recording;
mod state;
#[cfg(test)]
mod tests;

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use crate::chunks::{Chunks, by_chunks, positive};
use crate::elementwise::Elementwise;
use crate::error::Error;
use crate::parts::Parts;
use crate::place::Place;
use recording::{Mark, mark};
use state::{Kept, copied_to};

pub use any::OffloadedAny;
pub use state::OffloadedState;

/// Any burn optimizer, with its state in host memory: the device holds state only for the parameter, or the chunk of a parameter, that is
/// being updated. DeepSpeed calls this ZeRO-Offload (Ren et al. 2021); here the device computes the update.
///
/// Parameters and records have the bits that `O` alone gives. A run that was saved with one resumes with the other.
///
/// # What a step copies
/// - On a device with memory of its own, each step copies the state to the device and back. The copy of the next chunk's state to the
///   device is asked for before the step waits for this chunk, so that the host's part of it (into pinned memory) runs while the device
///   computes. The device then holds the state of two chunks. Both copies are in the device's one queue, and do not overlap with each
///   other or with computation on the device.
/// - burn's CPU device has the host's memory. Nothing is copied, and nothing saved.
/// - Tensors in a dtype that their record does not keep stay on the device. Of burn's optimizers this is the state of parameters in
///   another dtype than the device's default: use [`StochasticBf16`](crate::StochasticBf16).
/// - burn's capture device records the updates of `O`, and marks the operations between which a chunk's state is on the device.
///
/// # Failures
/// A step that panics, for example because the device runs out of memory, leaves a clone of the old state unchanged.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_optimizers::Offloaded;
///
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(8, 4).init(&device);
/// let mut optimizer = ModuleOptimizer::from(Offloaded::by_chunks(AdamWConfig::new().build(), 1 << 20)?);
///
/// let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
/// let gradients = GradientsParams::from_grads(model.forward(x).square().mean().backward(), &model);
/// model = optimizer.step(1e-3, model, gradients);
/// # Ok::<(), kiln_optimizers::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Offloaded<O> {
    optimizer: O,
    /// Elements of a chunk.
    elements: usize,
}

impl<O: Optimizer> Offloaded<O> {
    /// `optimizer`, whose state is copied one parameter at a time.
    pub fn new(optimizer: O) -> Self {
        Self { optimizer, elements: usize::MAX }
    }

    /// Copies the state in chunks of a parameter, of at least `elements` and less than twice as many elements. A step then also needs its
    /// temporary tensors for one chunk only. 8-bit and 4-bit state is small: it is copied as a whole.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when `elements` is 0.
    pub fn by_chunks(optimizer: O, elements: usize) -> Result<Self, Error>
    where
        O: Elementwise,
    {
        Ok(Self { optimizer, elements: positive(elements)? })
    }

    /// A step on a device whose memory is at `place`.
    fn step_at<const D: usize>(
        &self,
        place: Place,
        lr: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<OffloadedState<O::State<D>>>,
    ) -> (Tensor<D>, Option<OffloadedState<O::State<D>>>) {
        let (dims, device) = (tensor.dims(), tensor.device());
        let chunks = Chunks::of(tensor.shape().num_elements(), self.elements);
        let (chunks, kept) = match state {
            Some(OffloadedState(parts)) => parts.divide(chunks, &dims, &device),
            None => (chunks, vec![]),
        };
        let mut fits = kept.first().is_some_and(Kept::is_record);
        let mut arriving = kept.into_iter().map(|kept| copied_to::<O, D>(kept, &device));
        mark(place, Mark::FromHost, &device);
        let mut next = arriving.next();
        let mut kept = Vec::with_capacity(chunks.count());
        let tensor = by_chunks(chunks, tensor, gradient, |first, tensor, gradient| {
            let (tensor, state) = self.optimizer.step(lr, tensor, gradient, next.take());
            if first != chunks.range(chunks.count() - 1).start {
                mark(place, Mark::FromHost, &device);
            }
            next = arriving.next();
            if let Some(state) = state {
                let state = Kept::new(state, place, &device, fits);
                fits = state.is_record();
                kept.push(state);
            }
            mark(place, Mark::ToHost, &device);
            tensor
        });
        (tensor, Parts::of(chunks, &dims, kept).map(OffloadedState))
    }
}

impl<O: Optimizer> Optimizer for Offloaded<O> {
    type State<const D: usize> = OffloadedState<O::State<D>>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let place = Place::of(&tensor.device());
        self.step_at(place, lr, tensor, grad, state)
    }

    /// The state as it is: it stays in host memory.
    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
    }
}

impl<O: Elementwise> Elementwise for Offloaded<O> {}
