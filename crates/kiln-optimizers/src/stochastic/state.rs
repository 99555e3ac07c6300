//! The state of a parameter that is rounded stochastically.

use burn::optim::{RecordState, StateSink, StateSource, join_path};
use burn::tensor::Device;

use crate::parts::Parts;

/// State of [`StochasticBf16`](super::StochasticBf16) for one parameter: the inner optimizer's state, and the numbers that determine the
/// noise.
#[derive(Clone, Debug)]
pub struct StochasticState<S> {
    /// Number of steps so far.
    pub(super) step: u64,
    /// Makes this parameter's noise different from the noise of others.
    pub(super) salt: u64,
    pub(super) inner: Option<Parts<S>>,
}

impl<S: RecordState> RecordState for StochasticState<S> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, "step", self.step.into());
        out.push_scalar(prefix, "salt", self.salt.into());
        if let Some(inner) = &self.inner {
            inner.state_flatten(&join_path(prefix, "inner"), out);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let mut number = |leaf| u64::try_from(source.take_scalar(prefix, leaf)?).ok();
        let (step, salt) = (number("step")?, number("salt")?);
        let path = join_path(prefix, "inner");
        let inner = if source.has_under(&path) { Some(Parts::state_unflatten(&path, source, device)?) } else { None };
        Some(Self { step, salt, inner })
    }
}
