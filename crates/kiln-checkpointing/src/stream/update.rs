//! The update of streamed parameters, one after the other.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, DType, Device, Tensor};

use super::store::{Blob, Content};
use super::streamed::{Streamed, bytes_of, tensor};
use crate::Error;

impl Streamed {
    /// Calls `each` with every sum of gradients on `device`, flattened, in f32, in the order of the parameters.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn each_gradient(&self, device: &Device, mut each: impl FnMut(Tensor<1>)) -> Result<(), Error> {
        for number in self.summed() {
            let elements = self.layout().entries[number].shape.iter().product();
            if let Some(sum) = self.flat_sum(number, elements, device)? {
                each(sum);
            }
        }
        Ok(())
    }

    /// Updates the parameters that have a gradient with `optimizer`, whose state for them is in the store, and with the sum of their
    /// gradients multiplied by `factor`. `module` is the model or the blocks, whose fields tell the paths of parameters. One parameter is in
    /// memory at a time. The next [`commit`](Self::commit) makes the update current; until then it may be repeated.
    ///
    /// burn loads the optimizer's state on its default device, and moves it to that of the parameter.
    ///
    /// # Errors
    /// [`Error::Store`]; the parameters are then unchanged, and their gradients are kept.
    pub fn update<M: Module>(
        &self,
        module: &M,
        optimizer: &ModuleOptimizer,
        rate: impl Into<ModuleLearningRate>,
        factor: f64,
    ) -> Result<(), Error> {
        let rate = rate.into();
        for number in self.summed() {
            let filled = self.filled_with(module.clone(), number)?;
            let mut gradients = Gradient { streamed: self, number, factor, found: GradientsParams::new(), failure: None };
            filled.visit(&mut gradients);
            if let Some(error) = gradients.failure {
                return Err(error);
            }
            let blob = |content| Blob { parameter: number, content };
            let unreadable = |e: &dyn std::fmt::Display| Error::Store {
                path: blob(Content::State).to_string(),
                reason: e.to_string(),
            };
            let record = self.read(blob(Content::State))?;
            let record = record.map(|bytes| OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes)));
            let record = record.transpose().map_err(|e| unreadable(&e))?.unwrap_or_default();
            let mut optimizer = optimizer.clone().load_record(record);
            let updated = optimizer.step(rate.clone(), filled, gradients.found);
            let state = optimizer.into_bytes().map_err(|e| unreadable(&e))?;
            self.write(blob(Content::State), &state)?;
            drop((state, optimizer));
            let mut value = Value { streamed: self, number, value: None };
            updated.visit(&mut value);
            if let Some(value) = value.value {
                self.write(blob(Content::Value), &value?)?;
            }
        }
        Ok(())
    }

    fn flat_sum(&self, number: usize, elements: usize, device: &Device) -> Result<Option<Tensor<1>>, Error> {
        let bytes = self.read(Blob { parameter: number, content: Content::Gradient })?;
        Ok(bytes.map(|bytes| tensor(bytes, &[elements], DType::F32, device)))
    }

    fn is(&self, id: ParamId, number: usize) -> bool {
        self.layout().numbers.get(&id) == Some(&number)
    }
}

/// Reads the gradient of one parameter.
struct Gradient<'a> {
    streamed: &'a Streamed,
    number: usize,
    factor: f64,
    found: GradientsParams,
    failure: Option<Error>,
}

impl ModuleVisitor for Gradient<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.streamed.is(param.id, self.number) {
            return;
        }
        match self.streamed.sum_of::<D>(self.number, &param.val().device().inner()) {
            Ok(Some(sum)) if self.factor == 1.0 => self.found.register(param.id, sum),
            Ok(Some(sum)) => self.found.register(param.id, sum * self.factor),
            Ok(None) => {}
            Err(error) => self.failure = Some(error),
        }
    }
}

/// Takes the value of one parameter.
struct Value<'a> {
    streamed: &'a Streamed,
    number: usize,
    value: Option<Result<Bytes, Error>>,
}

impl ModuleVisitor for Value<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.streamed.is(param.id, self.number) {
            self.value = Some(bytes_of(param.val().inner()));
        }
    }
}
