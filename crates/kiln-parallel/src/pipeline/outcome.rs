//! How a forward pass and a run end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Tensor;

use super::boundary::{Parts, StageBoundary, Unwind};
use super::hand_over::HandOver;
use crate::error::Error;
use crate::schedule::{Action, Timeline};

/// The losses and the timeline of a run.
#[derive(Clone, Debug)]
pub struct PipelineOutput {
    /// The losses in the order of the micro-batches, on the last stage's device, without a graph.
    pub losses: Vec<Tensor<1>>,
    /// The actions of each stage, with times in seconds from the beginning of the run. Waiting is not part of an action.
    pub timeline: Timeline,
}

/// The reason why a run stopped before its end.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped<E> {
    /// A function that the caller gave has failed.
    #[error("stage {stage} failed in {action}: {error}")]
    Failed {
        /// The stage.
        stage: usize,
        /// The action in which it failed.
        action: Action,
        /// The function's error.
        error: E,
    },
    /// The pipeline itself has failed: [`Error::StageCount`], [`Error::Bypassed`], [`Error::Stalled`] or
    /// [`Error::Thread`].
    #[error(transparent)]
    Pipeline(#[from] Error),
}

/// A failure that ends a run.
pub(super) enum Failure<E> {
    Stopped(Stopped<E>),
    Panic(Box<dyn Any + Send>),
}

impl<E> Failure<E> {
    pub(super) fn of(stage: usize, action: Action, error: E) -> Self {
        Self::Stopped(Stopped::Failed { stage, action, error })
    }

    /// The failure for a panic in the backward pass of a stage.
    pub(super) fn of_backward(stage: usize, micro_batch: usize, payload: Box<dyn Any + Send>) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        match text {
            // burn says so where a later stage's backward pass has gone through operations of this stage.
            Some(text) if text.contains("graph tape has already been consumed") => {
                Error::Bypassed { stage, micro_batch }.into()
            }
            _ => Self::Panic(payload),
        }
    }
}

impl<E> From<Error> for Failure<E> {
    fn from(error: Error) -> Self {
        Self::Stopped(Stopped::Pipeline(error))
    }
}

/// The first failure of a run.
pub(super) struct First<E>(Mutex<Option<Failure<E>>>);

impl<E> First<E> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Keeps `failure` if it is the first one, and stops the run.
    pub(super) fn set(&self, failure: Failure<E>, hand_over: &HandOver) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        hand_over.stop();
    }

    pub(super) fn take(self) -> Option<Failure<E>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a forward pass has ended.
pub(super) enum ForwardEnd<E> {
    /// With a loss.
    Loss(Box<Tensor<1>>),
    /// With an error of the forward pass.
    Error(E),
    /// With a panic.
    Panic(Box<dyn Any + Send>),
    /// Unwound, because the run has stopped.
    Unwound,
}

/// Runs the forward pass of a micro-batch on this thread, which is suspended where a stage ends. Returns its outcome and the stage that it has come to.
pub(super) fn run_forward<E>(
    forward: impl FnOnce(usize, &StageBoundary<'_>) -> Result<Tensor<1>, E>,
    hand_over: &HandOver,
    parts: &Parts,
    stages: usize,
    micro_batch: usize,
) -> (usize, ForwardEnd<E>) {
    let boundary = StageBoundary::new(hand_over, parts, stages, micro_batch);
    let outcome = match catch_unwind(AssertUnwindSafe(|| forward(micro_batch, &boundary))) {
        Ok(Ok(loss)) => ForwardEnd::Loss(Box::new(loss)),
        Ok(Err(error)) => ForwardEnd::Error(error),
        Err(payload) if payload.is::<Unwind>() => ForwardEnd::Unwound,
        Err(payload) => ForwardEnd::Panic(payload),
    };
    (boundary.stage(), outcome)
}
