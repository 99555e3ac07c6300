//! How a run has ended.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use burn::tensor::Tensor;

use super::hand_over::HandOver;
use crate::error::Error;
use crate::schedule::{Action, Timeline};

/// The losses and the timeline of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The losses in the order of the micro-batches, on the last stage's device, without a graph.
    pub losses: Vec<Tensor<1>>,
    /// The actions of each stage, with times in seconds from the beginning of the run. Waiting is not part of an action.
    pub timeline: Timeline,
}

/// Why a run has stopped before its end.
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
    /// The pipeline itself has failed: [`Error::Hops`], [`Error::Bypassed`], [`Error::Stalled`] or
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
