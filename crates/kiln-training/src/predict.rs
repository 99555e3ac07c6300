use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_memory::{Recorder, StepOptions, StepTrace};

use crate::update::CHUNKS;
use crate::{Error, StepSettings};

/// Records a [`Trainer`](crate::Trainer)'s step without running it, so that its memory can be predicted for any batch size.
///
/// `init` makes the plain model; it is put under the settings' policy. `loss` is what a [`Task`](crate::Task) computes, on
/// [`Recorder::batch`] samples. `accumulates` says whether batches are cut into micro-batches; the size to predict for
/// is then that of a micro-batch.
///
/// # Errors
/// [`Error::Predict`] for a step that cannot be recorded; see [`kiln_memory::record_step`].
pub fn record<M: Module + 'static>(
    settings: &StepSettings,
    accumulates: bool,
    init: impl Fn(&Device) -> M,
    loss: impl Fn(&M, &Recorder) -> Tensor<1>,
) -> Result<StepTrace, Error> {
    let options = StepOptions {
        accumulate: accumulates,
        scale_gradients: settings.max_norm.is_some() || settings.scaling() != kiln_precision::Scaling::None,
        reads_norm: true,
        update_chunks: Some(CHUNKS),
        ..StepOptions::default()
    };
    // The recording reports a panic as an error.
    let build = |device: &Device| settings.policy.autocast(init(device)).unwrap_or_else(|e| panic!("{e}"));
    Ok(settings.optimizer.record(build, loss, options)?)
}
