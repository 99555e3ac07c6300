use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::{Accumulator, Error, Weight};

/// One batch in the making: it takes micro-batches until their weights add up to the batch's.
///
/// A window has no gradients to step with before it is complete:
///
/// ```compile_fail
/// # use kiln_accumulation::{Weight, Window};
/// let window = Window::open(Weight::Samples(8))?;
/// let gradients = window.gradients; // only `Accumulated` has them
/// # Ok::<(), kiln_accumulation::Error>(())
/// ```
///
/// and cannot be fed after, because feeding it takes it:
///
/// ```compile_fail
/// # use kiln_accumulation::{Weight, Window};
/// # fn example(model: burn::nn::Linear, loss: burn::tensor::Tensor<1>) -> Result<(), kiln_accumulation::Error> {
/// let window = Window::open(Weight::Samples(8))?;
/// let fed = window.feed(&model, Weight::Samples(8), loss.clone())?;
/// let again = window.feed(&model, Weight::Samples(8), loss)?; // moved by the first call
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a window that is dropped loses the gradients fed to it"]
pub struct Window {
    total: Weight,
    fed: usize,
    micro_batches: usize,
    scale: f64,
    loss: Option<Tensor<1>>,
    sum: Accumulator,
}

/// What became of a window that was fed.
#[derive(Debug)]
#[must_use]
pub enum Fed {
    /// More micro-batches are missing.
    Open(Window),
    /// That was the last one.
    Complete(Accumulated),
}

/// The gradients of a whole batch.
#[derive(Debug)]
#[must_use]
pub struct Accumulated {
    /// Gradients of the mean loss over the batch times [`scale`](Self::scale), in f32.
    pub gradients: GradientsParams,
    /// The mean loss over the batch, unscaled, in f32, without a graph. Reading it is the caller's choice: it stays on
    /// the device.
    pub loss: Tensor<1>,
    /// The loss scale that the gradients carry.
    pub scale: f64,
    /// The weight of the batch.
    pub weight: Weight,
    /// Micro-batches it was fed in.
    pub micro_batches: usize,
}

impl Window {
    /// A window for a batch that counts `total`.
    ///
    /// # Errors
    /// [`Error::Zero`] when the weight is 0.
    pub fn open(total: Weight) -> Result<Self, Error> {
        Self::scaled(total, 1.0)
    }

    /// The same with a loss scale, constant over the window, for gradients in f16.
    ///
    /// # Errors
    /// [`Error::Zero`] when the weight is 0, [`Error::Scale`] when the scale is not a finite number above 0.
    pub fn scaled(total: Weight, scale: f64) -> Result<Self, Error> {
        if total.count() == 0 {
            return Err(Error::Zero { what: "weight" });
        }
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(Error::Scale(scale));
        }
        Ok(Self { total, fed: 0, micro_batches: 0, scale, loss: None, sum: Accumulator::new() })
    }

    /// Weight that is missing until the window is complete.
    pub fn missing(&self) -> Weight {
        self.total.of(self.total.count() - self.fed)
    }

    /// Runs the backward pass of `loss`, the mean over a micro-batch that counts `weight`, and adds the gradients.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Unit`] and [`Error::Overfull`] for a weight that does not fit, [`Error::NoGradients`] for
    /// a loss that no parameter of `model` had a part in. The window and what it held are then gone: the batch must be
    /// taken again from the start.
    pub fn feed(mut self, model: &impl Module, weight: Weight, loss: Tensor<1>) -> Result<Fed, Error> {
        let (total, missing) = (self.total, self.missing());
        if weight.count() == 0 {
            return Err(Error::Zero { what: "weight" });
        }
        if weight != total.of(weight.count()) {
            return Err(Error::Unit { fed: weight, total });
        }
        if weight.count() > missing.count() {
            return Err(Error::Overfull { fed: weight, missing });
        }
        if !loss.is_tracked() {
            return Err(Error::NoGradients);
        }
        let share = weight.count() as f64 / total.count() as f64;
        let mean = loss.clone().inner().cast(DType::F32) * share;
        // The loss itself is taken to f32 first: share * scale may be far outside of f16.
        let scaled = loss.cast(DType::F32) * (share * self.scale);
        let gradients = GradientsParams::from_grads(scaled.backward(), model);
        if gradients.is_empty() {
            return Err(Error::NoGradients);
        }
        self.sum.add(model, gradients);
        let loss = match self.loss.take() {
            Some(loss) => loss + mean,
            None => mean,
        };
        self.fed += weight.count();
        self.micro_batches += 1;
        if self.fed < total.count() {
            self.loss = Some(loss);
            return Ok(Fed::Open(self));
        }
        Ok(Fed::Complete(Accumulated {
            gradients: self.sum.finish(),
            loss,
            scale: self.scale,
            weight: total,
            micro_batches: self.micro_batches,
        }))
    }
}
