//! Running statistics, as those of batch-norm, updated once per batch.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use crate::error::Error;
use crate::split::share;
use crate::weight::Weight;

/// Updates running statistics, as those of batch-norm, once per window, by the weighted mean of the micro-batches' statistics.
///
/// burn and torch update them at every micro-batch, so that with k micro-batches they forget the past k times as fast. Here every
/// micro-batch starts from the statistics before the window, `r0`, and results in `(1 - m) r0 + m s` for its own statistics `s`
/// and momentum `m`. The mean of these results, weighted as the loss is, is one update by the weighted mean of all `s`.
///
/// Running statistics are parameters of one dimension whose field's name begins with `running_` and that take no gradient: those of burn's
/// `BatchNorm`, and of other modules that follow its rule. A model without them costs one visit to its parameters.
#[derive(Debug)]
pub struct RunningStatistics {
    /// Without autodiff, whose graph keeps memory for each operation on a statistic.
    before: HashMap<ParamId, Tensor<1>>,
    sum: HashMap<ParamId, Tensor<1>>,
}

impl RunningStatistics {
    /// Reads the statistics of `model` before the window.
    pub fn before(model: &impl Module) -> Self {
        Self { before: read(model), sum: HashMap::new() }
    }

    /// Adds the statistics in `model` after a micro-batch, which weighs `weight` of `total`, to the weighted mean. Restores in `model` the
    /// statistics from before the window.
    ///
    /// # Errors
    /// [`Error::Zero`] for a total of 0, [`Error::Unit`] and [`Error::Overfull`] for a weight that does not fit it.
    pub fn take(&mut self, model: &impl Module, weight: Weight, total: Weight) -> Result<(), Error> {
        self.take_some(model, |_| true, weight, total)
    }

    /// [`take`](Self::take) for the statistics whose ids `of` accepts. The others stay as they are. For a model of several pipeline stages,
    /// which finish a micro-batch one after the other.
    ///
    /// # Errors
    /// Those of [`take`](Self::take).
    pub fn take_some(
        &mut self,
        model: &impl Module,
        of: impl Fn(ParamId) -> bool,
        weight: Weight,
        total: Weight,
    ) -> Result<(), Error> {
        let share = share(weight, total, total)?;
        if self.before.is_empty() {
            return Ok(());
        }
        for (id, value) in read(model).into_iter().filter(|(id, _)| of(*id)) {
            let part = if share == 1.0 { value } else { value * share };
            let sum = match self.sum.remove(&id) {
                Some(sum) => sum + part,
                None => part,
            };
            self.sum.insert(id, sum);
        }
        let restored = self.before.iter().filter(|(id, _)| of(**id)).map(|(id, value)| (*id, value.clone()));
        write(model, &restored.collect());
        Ok(())
    }

    /// Replaces the sums of this replica by those over all replicas, for a batch that is divided among replicas. `sum` adds them up: it
    /// takes this replica's sums in the order of `model`'s fields, and returns as many in the same order. A statistic without a micro-batch
    /// is zeros.
    ///
    /// # Errors
    /// Those of `sum`.
    pub fn sum_over_replicas<E>(
        &mut self,
        model: &impl Module,
        sum: impl FnOnce(Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, E>,
    ) -> Result<(), E> {
        let ordered = || visit(model).into_iter();
        let own = ordered().map(|(id, value)| self.sum.get(&id).cloned().unwrap_or_else(|| value.zeros_like()));
        let sums = sum(own.collect())?;
        self.sum = ordered().map(|(id, _)| id).zip(sums).collect();
        Ok(())
    }

    /// Whether the model has no running statistics.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty()
    }

    /// The values that [`commit`](Self::commit) will write, for a check before it does.
    pub fn values(&self) -> impl Iterator<Item = &Tensor<1>> {
        self.sum.values()
    }

    /// Writes the weighted mean to `model`, once per window.
    pub fn commit(&self, model: &impl Module) {
        write(model, &self.sum);
    }

    /// Restores the statistics from before the window, for a batch whose step is skipped.
    pub fn restore(&self, model: &impl Module) {
        if !self.before.is_empty() {
            settle(model);
        }
        write(model, &self.before);
    }
}

/// A walk over a module that tells running statistics from other floats.
struct Walk<F> {
    /// For each field down to the place of the walk: whether it is called as statistics are.
    stack: Vec<bool>,
    each: F,
}

impl<F> Walk<F> {
    fn new(each: F) -> Self {
        Self { stack: vec![], each }
    }

    fn enter(&mut self, name: &str) {
        self.stack.push(name.starts_with("running_"));
    }

    fn is_statistic<const D: usize>(&self, param: &Param<Tensor<D>>) -> bool {
        D == 1 && self.stack.last() == Some(&true) && !param.is_require_grad()
    }
}

impl<F: FnMut(ParamId, Tensor<1>)> ModuleVisitor for Walk<F> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.stack.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.is_statistic(param) {
            (self.each)(param.id, same(param.val().without_autodiff()));
        }
    }
}

impl ModuleMapper for Walk<&HashMap<ParamId, Tensor<1>>> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.stack.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.each.get(&param.id).filter(|_| self.is_statistic(&param)) {
            Some(value) => param.map(|old| {
                let value = same(value.clone());
                match old.gradient_checkpointing_strategy() {
                    Some(strategy) => value.autodiff().with_gradient_checkpointing_strategy(strategy),
                    None => value,
                }
            }),
            None => param,
        }
    }
}

fn read(model: &impl Module) -> HashMap<ParamId, Tensor<1>> {
    if visit(model).is_empty() {
        return HashMap::new();
    }
    settle(model);
    visit(model).into_iter().collect()
}

/// The statistics in the order of the fields, without what threads have not merged yet.
fn visit(model: &impl Module) -> Vec<(ParamId, Tensor<1>)> {
    let mut found = vec![];
    model.visit(&mut Walk::new(|id, value| found.push((id, value))));
    found
}

/// Merges the updates of all threads into the statistics: burn keeps each thread's last update apart until `valid` is called.
fn settle(model: &impl Module) {
    let _ = model.valid();
}

/// The tensor with `E` dimensions in its type, where `D` and `E` are equal: a visitor does not know that statistics have one dimension. A
/// reshape would do so too, but the graph keeps 3 KiB for it as long as the tensor lives.
fn same<const D: usize, const E: usize>(statistic: Tensor<D>) -> Tensor<E> {
    Tensor::from_dispatch(statistic.into_dispatch())
}

fn write(model: &impl Module, values: &HashMap<ParamId, Tensor<1>>) {
    if !values.is_empty() {
        // Clones of a module share their running statistics, so mapping a clone writes to the model.
        let _ = model.clone().map(&mut Walk::new(values));
    }
}
