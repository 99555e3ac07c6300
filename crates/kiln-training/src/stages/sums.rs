//! Gradients of stages, added up over micro-batches.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_accumulation::{Accumulator, RunningSums, Weight, scale_of_rows};

use super::readers::Uses;
use crate::error::Error;

/// The gradients of a batch, as stages hand them in. Those of a stage come in the order of the micro-batches. Those of a micro-batch come
/// from the last stage to the first.
///
/// A parameter that several stages use, such as an embedding that is also the output layer, has a gradient in each of them. They are
/// added for each micro-batch before the micro-batch is added to the sum. One backward pass through all stages adds them in this order,
/// so that the sum has the same bits. Gradients of later stages wait until the first of these stages has its own.
///
/// Stages add to their sums concurrently.
pub(crate) struct StageGradients {
    sums: Vec<Mutex<Accumulator>>,
    /// Gradients of parameters that an earlier stage uses as well, by micro-batch.
    waiting: Mutex<HashMap<usize, GradientsParams>>,
    uses: Uses,
}

impl StageGradients {
    /// No gradients.
    pub(crate) fn new(stages: usize, uses: Uses) -> Self {
        Self { sums: (0..stages).map(|_| Mutex::default()).collect(), waiting: Mutex::default(), uses }
    }

    /// The root of a stage's backward pass that goes on with the stage's sums of the parameters in `which`. Its gradients must then be
    /// [added](Self::add).
    pub(crate) fn accumulate_into(
        &self,
        model: &impl Module,
        stage: usize,
        root: Tensor<1>,
        which: &HashSet<ParamId>,
    ) -> Tensor<1> {
        let own = |id| which.contains(&id) && self.uses.first(id) == stage;
        lock(&self.sums[stage]).accumulate_into(root, model, own)
    }

    /// Adds a stage's gradients of one micro-batch.
    ///
    /// # Errors
    /// [`Error::Accumulation`], and [`Error::Bypassed`] for the gradient of a parameter that the stage does not use: it comes from a tensor
    /// of another stage.
    pub(crate) fn add(
        &self,
        model: &impl Module,
        (stage, micro_batch): (usize, usize),
        mut gradients: GradientsParams,
    ) -> Result<(), Error> {
        let uses = &self.uses;
        if let Some(stage) = foreign(model, &gradients, |id| !uses.may_be_in(id, stage)).map(|id| uses.first(id)) {
            return Err(Error::Bypassed { stage });
        }
        let must_wait = |id: ParamId| uses.is_shared(id) && uses.first(id) < stage;
        let mut waiting = lock(&self.waiting).remove(&micro_batch).unwrap_or_default();
        model.visit(&mut Move { from: &mut gradients, to: &mut waiting, of: &must_wait });
        model.visit(&mut Move { from: &mut waiting, to: &mut gradients, of: &|id| !must_wait(id) });
        if !waiting.is_empty() {
            lock(&self.waiting).insert(micro_batch, waiting);
        }
        if !gradients.is_empty() {
            lock(&self.sums[stage]).add(model, gradients)?;
        }
        Ok(())
    }

    /// The sums of all stages, with those that rows were added to in their order, for a batch of this weight and loss scale. Also what they are
    /// multiplied by.
    ///
    /// # Errors
    /// [`Error::Accumulation`].
    pub(crate) fn finish(
        self,
        model: &impl Module,
        in_order: Option<RunningSums>,
        (total, scale): (Weight, f64),
    ) -> Result<(GradientsParams, f64), Error> {
        // The first stage has no gradient for these.
        let mut waiting: Vec<_> = into_inner(self.waiting).into_iter().collect();
        waiting.sort_by_key(|(micro_batch, _)| *micro_batch);
        for (_, gradients) in waiting {
            lock(&self.sums[0]).add(model, gradients)?;
        }
        let mut all = GradientsParams::new();
        for sum in self.sums {
            model.visit(&mut Move { from: &mut into_inner(sum).finish(), to: &mut all, of: &|_| true });
        }
        let Some(in_order) = in_order else { return Ok((all, scale)) };
        let mut in_order = in_order.finish(model).map_err(kiln_accumulation::Error::from)?;
        model.visit(&mut Move { from: &mut in_order, to: &mut all, of: &|_| true });
        Ok((all, scale_of_rows(total, scale)))
    }
}

/// Moves gradients into another set, and adds those that are in both.
struct Move<'a> {
    from: &'a mut GradientsParams,
    to: &'a mut GradientsParams,
    of: &'a dyn Fn(ParamId) -> bool,
}

impl ModuleVisitor for Move<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !(self.of)(param.id) {
            return;
        }
        if let Some(gradient) = self.from.remove::<D>(param.id) {
            let sum = match self.to.remove::<D>(param.id) {
                Some(other) => other.clone() + gradient.to_device(&other.device()),
                None => gradient,
            };
            self.to.register(param.id, sum);
        }
    }
}

/// The first parameter that has a gradient and fulfils `is`.
fn foreign(model: &impl Module, gradients: &GradientsParams, is: impl Fn(ParamId) -> bool) -> Option<ParamId> {
    struct Find<'a, F>(&'a GradientsParams, F, Option<ParamId>);
    impl<F: Fn(ParamId) -> bool> ModuleVisitor for Find<'_, F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.2.is_none() && (self.1)(param.id) && self.0.get::<D>(param.id).is_some() {
                self.2 = Some(param.id);
            }
        }
    }
    let mut find = Find(gradients, is, None);
    model.visit(&mut find);
    find.2
}

/// Locks a mutex even if another holder panicked: the run has then failed.
pub(super) fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the value even if a holder panicked.
pub(super) fn into_inner<V>(mutex: Mutex<V>) -> V {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
