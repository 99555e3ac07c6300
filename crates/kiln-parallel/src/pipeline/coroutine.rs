//! The forward pass of one micro-batch, on a thread of its own that is suspended where a stage ends.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::Tensor;

use super::hand_over::HandOver;
use super::hop::{Hop, Parts, Unwind};

/// How a forward pass has ended.
pub(super) enum Outcome<E> {
    /// With a loss.
    Loss(Box<Tensor<1>>),
    /// With an error of the forward pass.
    Error(E),
    /// With a panic.
    Panic(Box<dyn Any + Send>),
    /// Unwound, because the run has stopped.
    Unwound,
}

/// Runs a forward pass. Returns its outcome and the stage that it has come to.
pub(super) fn run<E>(
    forward: impl FnOnce(usize, &Hop<'_>) -> Result<Tensor<1>, E>,
    hand_over: &HandOver,
    parts: &Parts,
    stages: usize,
    micro_batch: usize,
) -> (usize, Outcome<E>) {
    let hop = Hop::new(hand_over, parts, stages, micro_batch);
    let outcome = match catch_unwind(AssertUnwindSafe(|| forward(micro_batch, &hop))) {
        Ok(Ok(loss)) => Outcome::Loss(Box::new(loss)),
        Ok(Err(error)) => Outcome::Error(error),
        Err(payload) if payload.is::<Unwind>() => Outcome::Unwound,
        Err(payload) => Outcome::Panic(payload),
    };
    (hop.stage(), outcome)
}
