use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_accumulation::RunningStatistics;
use kiln_memory::UpdateChunks;
use kiln_precision::Prepared;
use kiln_recovery::{Failure, Outcome, Probe, attempt};

use crate::{Boundary, Error, StepReport, Trainer};

/// How the parameters are cut. Below a MiB memory is not worth the calls.
pub(crate) const CHUNKS: UpdateChunks = UpdateChunks { parts: 8, least: 1 << 20 };
/// How often the update of a single parameter is tried.
const TRIES: usize = 8;

/// An update of the parameters that is under way.
pub(crate) struct Update {
    prepared: Prepared,
    statistics: RunningStatistics,
    report: StepReport,
    /// Chunks that are left, and how often each has failed.
    left: VecDeque<(Vec<ParamId>, usize)>,
    /// Parameters with a gradient.
    parameters: usize,
}

impl Update {
    pub(crate) fn new(
        model: &impl Module,
        prepared: Prepared,
        statistics: RunningStatistics,
        report: StepReport,
    ) -> Self {
        let left: VecDeque<_> = chunks(model, &prepared).into_iter().map(|chunk| (chunk, 0)).collect();
        let parameters = left.iter().map(|(chunk, _)| chunk.len()).sum();
        Self { prepared, statistics, report, left, parameters }
    }

    pub(crate) fn unfinished(&self, step: u64, failure: Option<Failure>) -> Error {
        let left = self.left.iter().map(|(chunk, _)| chunk.len()).sum();
        Error::Unfinished { step, left, parameters: self.parameters, failure }
    }
}

impl<M: Module> Trainer<M> {
    /// Goes on with an update that memory ran out for, when the caller has made room: parameters that are updated stay so,
    /// the others follow. A step that returned [`Error::Unfinished`] is finished by this, and by nothing else; its batch is not
    /// to be given again.
    ///
    /// # Errors
    /// [`Error::Unfinished`] again, and [`Error::NoUpdate`] when there is nothing to finish.
    pub fn complete_update(&mut self) -> Result<StepReport, Error> {
        let step = self.state.next_step();
        let Some(mut update) = self.update.take() else { return Err(Error::NoUpdate { step }) };
        while let Some((chunk, failures)) = update.left.pop_front() {
            let begun = Instant::now();
            let tried = catch_unwind(AssertUnwindSafe(|| {
                attempt(
                    &self.settings.device,
                    || self.updated(&update, &chunk),
                    |(_, model), probe| probe_chunk(model, &chunk, probe),
                )
            }));
            let tried = match tried {
                Ok(tried) => tried,
                Err(panic) => {
                    update.left.push_front((chunk, failures));
                    self.update = Some(update);
                    resume_unwind(panic);
                }
            };
            if let Outcome::Failed(_) = tried {
                update.report.failures += 1;
                update.report.lost_seconds += begun.elapsed().as_secs_f64();
            }
            match tried {
                Outcome::Done((optimizer, model)) => {
                    (self.optimizer, self.model) = (optimizer, model);
                    drop_gradients(&self.model, &mut update.prepared, &chunk);
                }
                Outcome::Failed(failure) if failures + 1 < TRIES => {
                    tracing::warn!("step {step}: {failure} while {} parameters were updated", chunk.len());
                    // Halves need less, a single parameter may fit the next time.
                    let (first, second) = chunk.split_at(chunk.len() / 2);
                    let failures = if first.is_empty() { failures + 1 } else { 0 };
                    for half in [second, first].into_iter().filter(|half| !half.is_empty()) {
                        update.left.push_front((half.to_vec(), failures));
                    }
                }
                Outcome::Failed(failure) => {
                    update.left.push_front((chunk, 0));
                    let error = update.unfinished(step, Some(failure));
                    self.update = Some(update);
                    return Err(error);
                }
                Outcome::Passed(error) => {
                    update.left.push_front((chunk, failures));
                    self.update = Some(update);
                    return Err(error);
                }
            }
        }
        update.statistics.commit(&self.model);
        self.state = self.state.after_step(false);
        Ok(update.report)
    }

    /// Optimizer and model with one chunk updated; those of the trainer stay as they are.
    fn updated(&self, update: &Update, chunk: &[ParamId]) -> Result<(burn::optim::ModuleOptimizer, M), Error> {
        self.at(Boundary::Update)?;
        let gradients = gradients_of(&self.model, &update.prepared, chunk);
        let mut optimizer = self.optimizer.clone();
        let model = optimizer.step(update.report.learning_rate, self.model.clone(), gradients);
        Ok((optimizer, model))
    }
}

/// Bytes of parameters that are updated together.
pub(crate) fn chunk_bytes(model: &impl Module) -> u64 {
    CHUNKS.bytes(&learned(model, None).into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>())
}

/// Parameters that learn, or those of them that have a gradient, with their bytes, in the order of the fields; each once.
fn learned(model: &impl Module, with_gradient: Option<&Prepared>) -> Vec<(ParamId, u64)> {
    struct Learned<'a>(Option<&'a Prepared>, Vec<(ParamId, u64)>, BTreeSet<ParamId>);
    impl ModuleVisitor for Learned<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let wanted = self.0.is_none_or(|prepared| prepared.has::<D>(param.id));
            if wanted && param.is_require_grad() && self.2.insert(param.id) {
                let value = param.val();
                self.1.push((param.id, (value.shape().num_elements() * value.dtype().size()) as u64));
            }
        }
    }
    let mut learned = Learned(with_gradient, vec![], BTreeSet::new());
    model.visit(&mut learned);
    learned.1
}

/// The parameters that have a gradient, cut into runs of at most [`chunk_bytes`].
fn chunks(model: &impl Module, prepared: &Prepared) -> Vec<Vec<ParamId>> {
    let most = chunk_bytes(model);
    let (mut chunks, mut chunk, mut bytes) = (vec![], vec![], 0);
    for (id, size) in learned(model, Some(prepared)) {
        if bytes + size > most && !chunk.is_empty() {
            chunks.push(std::mem::take(&mut chunk));
            bytes = 0;
        }
        chunk.push(id);
        bytes += size;
    }
    chunks.extend((!chunk.is_empty()).then_some(chunk));
    chunks
}

fn gradients_of(model: &impl Module, prepared: &Prepared, chunk: &[ParamId]) -> GradientsParams {
    struct Take<'a>(&'a Prepared, &'a [ParamId], GradientsParams);
    impl ModuleVisitor for Take<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // A parameter may be met twice.
            if self.1.contains(&param.id)
                && self.2.get::<D>(param.id).is_none()
                && let Some(gradient) = self.0.get::<D>(param.id)
            {
                self.2.register(param.id, gradient);
            }
        }
    }
    let mut take = Take(prepared, chunk, GradientsParams::new());
    model.visit(&mut take);
    take.2
}

fn drop_gradients(model: &impl Module, prepared: &mut Prepared, chunk: &[ParamId]) {
    struct Drop<'a>(&'a mut Prepared, &'a [ParamId]);
    impl ModuleVisitor for Drop<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.1.contains(&param.id) {
                self.0.remove::<D>(param.id);
            }
        }
    }
    model.visit(&mut Drop(prepared, chunk));
}

/// New values are made from new optimizer state: when they are written, it is.
fn probe_chunk(model: &impl Module, chunk: &[ParamId], probe: &mut Probe) {
    struct Add<'a, 'b>(&'a mut Probe, &'b [ParamId]);
    impl ModuleVisitor for Add<'_, '_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.1.contains(&param.id) {
                self.0.add(&param.val());
            }
        }
    }
    model.visit(&mut Add(probe, chunk));
}
