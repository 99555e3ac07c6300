use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use crate::{Error, Weight};

/// Batch-norm's running statistics over a window: they move once, by the weighted mean of what the micro-batches saw.
///
/// Left alone, burn (and torch) move them at every micro-batch, so that k micro-batches forget the past k times as fast. Here
/// every micro-batch starts from the statistics before the window, `r0`, and leaves `(1 - m) r0 + m s` for its own
/// statistics `s`; the mean of these, weighted as the loss is, is one move by the weighted mean of the `s`.
///
/// Statistics are known by burn's `BatchNorm`; a model without one costs one walk over its parameters.
#[derive(Debug)]
pub struct RunningStatistics {
    before: HashMap<ParamId, Tensor<1>>,
    sum: HashMap<ParamId, Tensor<1>>,
}

impl RunningStatistics {
    /// Notes the statistics of `model` before the window.
    pub fn before(model: &impl Module) -> Self {
        Self { before: read(model), sum: HashMap::new() }
    }

    /// Takes what the last micro-batch left in `model`, which counts `weight` of `total`, and puts back the statistics from
    /// before the window.
    ///
    /// # Errors
    /// [`Error::Zero`] for a total of 0, [`Error::Unit`] and [`Error::Overfull`] for a weight that does not fit it.
    pub fn take(&mut self, model: &impl Module, weight: Weight, total: Weight) -> Result<(), Error> {
        let share = weight.share_of(total)?;
        if self.before.is_empty() {
            return Ok(());
        }
        for (id, value) in read(model) {
            let part = if share == 1.0 { value } else { value * share };
            let sum = match self.sum.remove(&id) {
                Some(sum) => sum + part,
                None => part,
            };
            self.sum.insert(id, sum);
        }
        write(model, &self.before);
        Ok(())
    }

    /// What [`commit`](Self::commit) will write: to be checked before it does.
    pub fn values(&self) -> impl Iterator<Item = &Tensor<1>> {
        self.sum.values()
    }

    /// Gives `model` the weighted mean: once per window.
    pub fn commit(self, model: &impl Module) {
        write(model, &self.sum);
    }

    /// Leaves `model` with the statistics from before the window, for a batch that is not taken after all.
    pub fn restore(self, model: &impl Module) {
        if !self.before.is_empty() {
            settle(model);
        }
        write(model, &self.before);
    }
}

/// Walks a module and says which floats are running statistics: those of a `BatchNorm` that are not weights.
#[derive(Default)]
struct Place {
    stack: Vec<(String, bool)>,
}

impl Place {
    fn enter(&mut self, name: &str, container: &str) {
        self.stack.push((name.to_owned(), container == "Struct:BatchNorm"));
    }

    fn leave(&mut self) {
        self.stack.pop();
    }

    fn is_statistic(&self) -> bool {
        self.stack.last().is_some_and(|(name, norm)| *norm && name.starts_with("running_"))
    }
}

fn read(model: &impl Module) -> HashMap<ParamId, Tensor<1>> {
    #[derive(Default)]
    struct Read {
        place: Place,
        found: HashMap<ParamId, Tensor<1>>,
    }
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.place.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.place.leave();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.place.is_statistic() {
                let value = param.val();
                let length = value.shape().num_elements();
                self.found.insert(param.id, value.reshape([length]));
            }
        }
    }
    let mut read = Read::default();
    model.visit(&mut read);
    if read.found.is_empty() {
        return read.found;
    }
    settle(model);
    let mut read = Read::default();
    model.visit(&mut read);
    read.found
}

/// burn keeps each thread's last update apart until somebody asks; `valid` asks.
fn settle(model: &impl Module) {
    let _ = model.valid();
}

fn write(model: &impl Module, values: &HashMap<ParamId, Tensor<1>>) {
    if values.is_empty() {
        return;
    }
    struct Write<'a> {
        place: Place,
        values: &'a HashMap<ParamId, Tensor<1>>,
    }
    impl ModuleMapper for Write<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.place.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.place.leave();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.values.get(&param.id).filter(|_| self.place.is_statistic()) {
                Some(value) => param.map(|old| value.clone().reshape(old.shape())),
                None => param,
            }
        }
    }
    // Clones of a module share their running statistics, so that mapping a clone writes them in place.
    let _ = model.clone().map(&mut Write { place: Place::default(), values });
}
