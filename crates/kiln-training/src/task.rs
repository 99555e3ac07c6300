//! A task: the model, its batches, its loss and its metrics.

use std::marker::PhantomData;

use burn::module::Module;
use burn::tensor::Tensor;

use crate::batch::{Batch, in_parts};
use crate::error::Error;
use crate::metrics::{Metric, Metrics, Totals};
use crate::pass::{Pass, Passes};
use crate::source::BatchSource;

/// A model, its batches, its training loss and its evaluation metrics.
pub trait Task {
    /// The model.
    type Model: Module + 'static;
    /// A batch on the host.
    type Batch: Batch;

    /// The mean loss over `batch`: a tensor of one element, from which the gradients are computed.
    ///
    /// The model may compute in 16 bits; compute the loss in f32. The method copies batches to [`Pass::device`], and runs blocks that
    /// follow each other through [`Pass::chain`]. The batch may be a part of the loader's batch.
    fn loss(&self, pass: &Pass<'_, Self::Model>, batch: &Self::Batch) -> Tensor<1>;

    /// Metrics over `batch`, computed without autodiff; by default the mean loss, as "loss".
    fn metrics(&self, pass: &Pass<'_, Self::Model>, batch: &Self::Batch) -> Metrics {
        let count = batch.weight().count();
        Metrics::new().with("loss", Metric::mean(self.loss(pass, batch) * count as f64, count))
    }

    /// Bytes that the task itself keeps on the device while it trains, such as the parameters of a teacher. The default is 0. They count
    /// in the prediction of a step.
    fn resident_bytes(&self) -> u64 {
        0
    }

    /// Evaluates `model` on all batches of `data` in `passes`, and returns names and values of metrics. By default they are the sums of
    /// [`metrics`](Self::metrics), with at most `at_once` samples of a batch on the device, and fewer if memory runs out. Override it for
    /// a metric that is not a sum over batches, for example if the task [joins tiles](crate::TilePredictor).
    ///
    /// # Errors
    /// Those of the data, [`Error::Memory`] when a single sample does not fit, and [`Error::Lost`].
    fn evaluate<S>(
        &self,
        model: &Self::Model,
        data: &S,
        passes: &Passes,
        at_once: impl Fn(&Self::Batch) -> usize,
    ) -> Result<Vec<(&'static str, f64)>, Error>
    where
        S: BatchSource<Batch = Self::Batch> + ?Sized,
        Self: Sized,
    {
        let model = model.valid();
        let totals_of = |part: &Self::Batch| match part.weight().count() {
            // A part in which no token carries a loss has no mean loss and adds nothing.
            0 => Ok(Totals::default()),
            _ => {
                let pass = passes.of(&model);
                let metrics = self.metrics(&pass, part);
                pass.finish()?;
                Ok(metrics.read()?)
            }
        };
        let mut totals = Totals::default();
        in_parts(data.epoch(0, 0), passes.device(), at_once, totals_of, |_, of_part| {
            totals.add(of_part);
            Ok(())
        })?;
        Ok(totals.finish())
    }
}

/// A loss function as a [`Task`], for programs that need no more than a loss.
///
/// ```
/// use burn::nn::Linear;
/// use burn::tensor::{Tensor, TensorData};
/// use kiln_training::{LossFn, Pass, Task};
///
/// let task = LossFn::new(|pass: &Pass<'_, Linear>, (x, y): &(TensorData, TensorData)| {
///     let (x, y): (Tensor<2>, Tensor<2>) = (pass.input(x), pass.input(y));
///     (pass.model().forward(x) - y).square().mean()
/// });
/// # fn is_task(_: impl Task) {}
/// # is_task(task);
/// ```
pub struct LossFn<F, M, B> {
    loss: F,
    kinds: PhantomData<fn(&M, &B)>,
}

impl<F, M, B> LossFn<F, M, B>
where
    F: Fn(&Pass<'_, M>, &B) -> Tensor<1>,
{
    /// The task of `loss`, which computes the mean loss over a batch.
    pub fn new(loss: F) -> Self {
        Self { loss, kinds: PhantomData }
    }
}

impl<F, M, B> Task for LossFn<F, M, B>
where
    F: Fn(&Pass<'_, M>, &B) -> Tensor<1>,
    M: Module + 'static,
    B: Batch,
{
    type Model = M;
    type Batch = B;

    fn loss(&self, pass: &Pass<'_, M>, batch: &B) -> Tensor<1> {
        (self.loss)(pass, batch)
    }
}
