//! A window: the micro-batches of one batch, fed one after the other.

use std::collections::HashSet;
use std::marker::PhantomData;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_operations::{RunningSums, SumPass};

use crate::error::Error;
use crate::gradients::{Accumulator, WeightedLoss, scale_of_rows};
use crate::split::share;
use crate::weight::Weight;

/// Sums the gradients of one batch: it takes micro-batches until their weights add up to the weight of the batch.
///
/// Gradients for the optimizer exist only when the window is complete:
///
/// ```compile_fail
/// # use kiln_accumulation::{Weight, Window};
/// let window = Window::open(Weight::Samples(8))?;
/// let gradients = window.into_gradients(); // of `Accumulated` only
/// # Ok::<(), kiln_accumulation::Error>(())
/// ```
///
/// A complete window cannot be fed, because feeding consumes it:
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
///
/// `S` is [`Scaled`] if the gradients will carry a loss scale, and [`Unscaled`] otherwise.
#[derive(Debug)]
#[must_use = "a window that is dropped loses the gradients fed to it"]
pub struct Window<S = Unscaled> {
    /// The weight that losses are shares of.
    total: Weight,
    /// The weight that completes the window.
    own: Weight,
    fed: usize,
    micro_batches: usize,
    scale: f64,
    loss: Option<Tensor<1>>,
    sum: Accumulator,
    /// The sums that rows are added to in their order, if they are.
    in_order: Option<RunningSums>,
    /// The pass that adds to them.
    pass: Option<Box<SumPass>>,
    used_once: HashSet<ParamId>,
    has_others: bool,
    state: PhantomData<S>,
}

/// Gradients of the loss itself.
#[derive(Debug)]
pub struct Unscaled;

/// Gradients of the loss multiplied by a scale; they must be unscaled before a step.
#[derive(Debug)]
pub struct Scaled;

/// The state of a window after it was fed.
#[derive(Debug)]
#[must_use]
pub enum Fed<S = Unscaled> {
    /// More micro-batches are missing.
    Open(Window<S>),
    /// The last micro-batch was fed.
    Complete(Accumulated<S>),
}

/// The gradients of a whole batch.
///
/// Scaled gradients cannot be used in a step by mistake:
///
/// ```compile_fail
/// # use kiln_accumulation::{Accumulated, Scaled};
/// # fn example(batch: Accumulated<Scaled>) {
/// let gradients = batch.into_gradients(); // of `Accumulated<Unscaled>` only
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Accumulated<S = Unscaled> {
    gradients: GradientsParams,
    scale: f64,
    state: PhantomData<S>,
    /// The mean loss over the batch, or the share of a part in it: unscaled, in f32, without a graph. It stays on the device until the
    /// caller reads it.
    pub loss: Tensor<1>,
    /// The weight of the batch, or of the part.
    pub weight: Weight,
    /// The number of its micro-batches.
    pub micro_batches: usize,
}

impl Window {
    /// A window for a batch of weight `total`.
    ///
    /// # Errors
    /// [`Error::Zero`] when the weight is 0.
    pub fn open(total: Weight) -> Result<Self, Error> {
        Self::with_scale(total, total, 1.0)
    }
}

impl Window<Scaled> {
    /// A window for a batch of weight `total`, for gradients in f16. It multiplies losses by the loss scale `scale`, which is the same for
    /// all micro-batches of the window.
    ///
    /// # Errors
    /// [`Error::Zero`] when the weight is 0, [`Error::Scale`] when the scale is not a finite number above 0.
    pub fn scaled(total: Weight, scale: f64) -> Result<Self, Error> {
        Self::with_scale(total, total, scale)
    }

    /// A [`scaled`](Self::scaled) window for a part of weight `own` of a batch of weight `total`, such as the part of one replica. The sums
    /// of the parts' losses and gradients are the loss and the gradients of the batch.
    ///
    /// # Errors
    /// Those of [`scaled`](Self::scaled), and [`Error::Unit`] and [`Error::Overfull`] for a part that does not fit.
    pub fn scaled_part(own: Weight, total: Weight, scale: f64) -> Result<Self, Error> {
        Self::with_scale(own, total, scale)
    }

    /// Adds up gradients row by row to `sums`, in the order of the rows, as far as the model's operations can. The sums of a batch then have the
    /// same bits however it is cut into micro-batches. The forward pass of a micro-batch must run [`during`](Self::during) this. Gradients carry
    /// another scale, which is a number of its own for each weight of a batch.
    pub fn in_order(mut self, sums: RunningSums) -> Self {
        self.in_order = Some(sums);
        self
    }
}

impl Accumulated {
    /// Gradients of the mean loss over the batch, in f32.
    pub fn into_gradients(self) -> GradientsParams {
        self.gradients
    }
}

impl Accumulated<Scaled> {
    /// Gradients of the mean loss over the batch multiplied by a scale, in f32, and this scale: that of the window, unless rows are added
    /// [in order](Window::in_order).
    pub fn into_scaled_gradients(self) -> (GradientsParams, f64) {
        (self.gradients, self.scale)
    }
}

impl<S> Window<S> {
    fn with_scale(own: Weight, total: Weight, scale: f64) -> Result<Self, Error> {
        if own.count() == 0 {
            return Err(Error::Zero { what: "weight" });
        }
        share(own, total, total)?;
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(Error::Scale(scale));
        }
        let (sum, in_order, used_once, state) = (Accumulator::new(), None, HashSet::new(), PhantomData);
        let (loss, has_others, pass) = (None, false, None);
        Ok(Self {
            total,
            own,
            fed: 0,
            micro_batches: 0,
            scale,
            loss,
            sum,
            in_order,
            pass,
            used_once,
            has_others,
            state,
        })
    }

    /// Names the parameters that a forward pass uses once: nearly all of them, but not an embedding that is the output layer as well. The
    /// backward pass adds their gradients to the sums as soon as it makes them, instead of making all gradients beside all sums. The sums
    /// have the same bits, and a step takes up to 4 bytes a parameter less. For a model without shared parameters these are
    /// [`list_param_ids`](burn::module::list_param_ids).
    ///
    /// The gradients of a parameter that is named but used several times are added to the sum one by one, so that the sum is rounded in
    /// another way.
    pub fn used_once(mut self, parameters: impl IntoIterator<Item = ParamId>) -> Self {
        self.used_once.extend(parameters);
        self
    }

    /// Says whether the backward pass also adds gradients to sums elsewhere, such as those of blocks whose parameters are in a store. Then
    /// there may be none for the window.
    pub fn with_others(mut self, has_others: bool) -> Self {
        self.has_others = has_others;
        self
    }

    /// The weight that is missing until the window is complete.
    pub fn missing(&self) -> Weight {
        self.own.of(self.own.count() - self.fed)
    }

    /// Runs the forward pass of a micro-batch of weight `weight`, whose first sample has the number `first_sample` in the batch.
    pub fn during<R>(
        &mut self,
        model: &impl Module,
        (first_sample, weight): (usize, Weight),
        forward: impl FnOnce() -> R,
    ) -> R {
        let is_last = weight == self.missing();
        match &self.in_order {
            Some(sums) => self.pass.insert(Box::new(sums.pass(model, first_sample).last(is_last))).during(forward),
            None => forward(),
        }
    }

    /// Runs the backward pass of `loss`, the mean over a micro-batch of weight `weight`, and adds the gradients.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Unit`] and [`Error::Overfull`] for a weight that does not fit, [`Error::NoGradients`] for a loss
    /// that does not depend on a parameter of `model`, [`Error::NotAScalar`] for a loss of several elements, [`Error::Sums`] for the last
    /// one of several losses that are no means over their weights, [in order](Self::in_order). After an error the
    /// window and its gradients are dropped, and the batch must start again. A micro-batch in which every token is ignored has no
    /// mean loss: leave it out.
    pub fn feed(mut self, model: &impl Module, weight: Weight, loss: Tensor<1>) -> Result<Fed<S>, Error> {
        let total = self.total;
        share(weight, self.missing(), total)?;
        let part = if self.in_order.is_some() { WeightedLoss::of_rows } else { WeightedLoss::new };
        let WeightedLoss { mean, scaled } = part(loss, weight, total, self.scale)?;
        let scaled = self.sum.accumulate_into(scaled, model, |id| self.used_once.contains(&id));
        let gradients = match self.pass.take() {
            Some(mut pass) => pass.during(|| scaled.backward()),
            None => scaled.backward(),
        };
        let has_sums = self.in_order.as_ref().is_some_and(|sums| !sums.is_empty());
        match self.sum.add(model, GradientsParams::from_grads(gradients, model)) {
            Err(Error::NoGradients) if self.has_others || has_sums => {}
            added => added?,
        }
        let loss = match self.loss.take() {
            Some(loss) => loss + mean,
            None => mean,
        };
        self.fed += weight.count();
        self.micro_batches += 1;
        if self.fed < self.own.count() {
            self.loss = Some(loss);
            return Ok(Fed::Open(self));
        }
        let scale = match self.in_order.take() {
            Some(sums) => {
                let gradients = sums.finish(model)?;
                self.sum.join(model, gradients)?;
                scale_of_rows(total, self.scale)
            }
            None => self.scale,
        };
        Ok(Fed::Complete(Accumulated {
            gradients: self.sum.finish(),
            loss,
            scale,
            state: PhantomData,
            weight: self.own,
            micro_batches: self.micro_batches,
        }))
    }
}
