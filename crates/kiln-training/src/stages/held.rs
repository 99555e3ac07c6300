//! Gradients of stages, added up over micro-batches.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_accumulation::Accumulator;

use crate::error::Error;

/// The gradients of a batch, as stages hand them in: those of a stage in the order of the micro-batches, those of a micro-batch from the
/// last stage to the first.
///
/// A parameter that several stages use, as an embedding that is also the output layer, has a gradient in each of them. They are added for
/// each micro-batch before the micro-batch is added to the sum, as one backward pass through all stages adds them: the sum has the same
/// bits. Until the first stage has its gradient, those of the later stages are held.
pub(crate) struct StageGradients {
    sums: Vec<Accumulator>,
    /// Gradients of parameters that an earlier stage may use, by micro-batch.
    held: HashMap<usize, GradientsParams>,
    /// The parameters that several stages use, once that is known.
    shared: Option<HashSet<ParamId>>,
    /// What has a gradient in which stages, of the first micro-batch.
    found: HashMap<ParamId, usize>,
}

impl StageGradients {
    /// No gradients. `shared`: the parameters that several stages use, if that is known.
    pub(crate) fn new(stages: usize, shared: Option<HashSet<ParamId>>) -> Self {
        let sums = (0..stages).map(|_| Accumulator::new()).collect();
        Self { sums, held: HashMap::new(), shared, found: HashMap::new() }
    }

    /// Adds the gradients that a stage has of a micro-batch. `blocks` are the parameters of the model's blocks, each of which one stage runs.
    ///
    /// # Errors
    /// [`Error::Accumulation`].
    pub(crate) fn add(
        &mut self,
        model: &impl Module,
        (stage, micro_batch): (usize, usize),
        mut gradients: GradientsParams,
        blocks: &HashSet<ParamId>,
    ) -> Result<(), Error> {
        if micro_batch == 0 {
            for id in ids_of(model, &gradients) {
                *self.found.entry(id).or_default() += 1;
            }
        }
        let mut held = self.held.remove(&micro_batch).unwrap_or_default();
        if stage > 0 {
            // A parameter may be that of an earlier stage as well, unless it is known not to be.
            let shared = &self.shared;
            let waits = |id: ParamId| match shared {
                Some(shared) => shared.contains(&id),
                None => !blocks.contains(&id),
            };
            model.visit(&mut Move { from: &mut gradients, to: &mut held, of: &waits });
        } else {
            model.visit(&mut Move { from: &mut held, to: &mut gradients, of: &|_| true });
        }
        if !held.is_empty() {
            self.held.insert(micro_batch, held);
        }
        if !gradients.is_empty() {
            self.sums[stage].add(model, gradients)?;
        }
        Ok(())
    }

    /// The sums of all stages, and the parameters that several of them use.
    ///
    /// # Errors
    /// [`Error::Accumulation`].
    pub(crate) fn finish(mut self, model: &impl Module) -> Result<(GradientsParams, HashSet<ParamId>), Error> {
        // No gradient has reached the first stage of these.
        let mut held: Vec<_> = self.held.drain().collect();
        held.sort_by_key(|(micro_batch, _)| *micro_batch);
        for (_, gradients) in held {
            self.sums[0].add(model, gradients)?;
        }
        let mut all = GradientsParams::new();
        for sum in self.sums {
            model.visit(&mut Move { from: &mut sum.finish(), to: &mut all, of: &|_| true });
        }
        let shared = self
            .shared
            .unwrap_or_else(|| self.found.into_iter().filter(|(_, stages)| *stages > 1).map(|(id, _)| id).collect());
        Ok((all, shared))
    }
}

/// Moves gradients to others, and adds them where both have one.
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
                // The first stage's device has the parameter.
                Some(other) => other.clone() + gradient.to_device(&other.device()),
                None => gradient,
            };
            self.to.register(param.id, sum);
        }
    }
}

fn ids_of(model: &impl Module, gradients: &GradientsParams) -> HashSet<ParamId> {
    struct Ids<'a>(&'a GradientsParams, HashSet<ParamId>);
    impl ModuleVisitor for Ids<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.get::<D>(param.id).is_some() {
                self.1.insert(param.id);
            }
        }
    }
    let mut ids = Ids(gradients, HashSet::new());
    model.visit(&mut ids);
    ids.1
}
