//! The update of streamed parameters, one after the other.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, DType, Device, Tensor};
use kiln_operations::{UpdatedPart, update_part};

use super::bytes::{bytes_of, missing, tensor};
use super::layout::Entry;
use super::store::{Blob, Content};
use super::streamed::Streamed;
use super::values::read_parts;
use crate::Error;

impl Streamed {
    /// Calls `each` with every sum of gradients on `device`, flattened, in f32, in the order of the parameters.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn each_gradient(&self, device: &Device, mut each: impl FnMut(Tensor<1>)) -> Result<(), Error> {
        for number in self.summed() {
            let (entry, content) = (&self.layout().entries[number], Content::Gradient);
            let bytes = read_parts(number, entry, content, None, |blob, bytes| self.read_sum(blob, bytes))?;
            each(tensor(bytes, (&[entry.shape.iter().product()], entry.dtype_of(content)), device));
        }
        Ok(())
    }

    /// Updates the parameters that have a gradient with `optimizer`, whose state for them is in the store, and with the sum of their
    /// gradients multiplied by `factor`. `module` is the model or the blocks, whose fields tell the paths of parameters. One parameter, or a
    /// [part](crate::Creation::parts) of it, is in memory at a time. The next [`commit`](Self::commit) makes the update current; until then it may be repeated.
    ///
    /// burn loads the optimizer's state on its default device, and moves it to that of the parameter.
    ///
    /// # Errors
    /// [`Error::Store`], and [`Error::StoreMismatch`] for state of another optimizer, and for one that cannot update a parameter in bf16 with a
    /// gradient in f32; the parameters are then unchanged, and their gradients are kept.
    pub fn update<M: Module>(
        &self,
        module: &M,
        optimizer: &ModuleOptimizer,
        rate: impl Into<ModuleLearningRate>,
        factor: f64,
    ) -> Result<(), Error> {
        let rate = rate.into();
        self.begin_update();
        for number in self.summed() {
            for part in 0..self.layout().entries[number].parts() {
                self.update_part(module, optimizer, rate.clone(), factor, (number, part))?;
            }
        }
        Ok(())
    }

    fn update_part<M: Module>(
        &self,
        module: &M,
        optimizer: &ModuleOptimizer,
        rate: ModuleLearningRate,
        factor: f64,
        (number, part): (usize, usize),
    ) -> Result<(), Error> {
        let path = &self.layout().entries[number].path;
        let filled = self.filled_with(module.clone(), Some(part), |other| other == number)?;
        let mut gradient = Gradient { streamed: self, number, part, factor, found: None };
        filled.visit(&mut gradient);
        let Some(gradients) = gradient.found.transpose()? else {
            return Err(Error::StoreMismatch { reason: format!("the module to update has no parameter {path}") });
        };
        let blob = |content| Blob::new(number, content, part);
        let unreadable =
            |e: &dyn Display| Error::Store { path: blob(Content::State).to_string(), reason: e.to_string() };
        let record = self.read(blob(Content::State))?.filter(|bytes| !bytes.is_empty());
        let record = record.map(|bytes| OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes)));
        let record = record.transpose().map_err(|e| unreadable(&e))?.unwrap_or_default();
        let (tensors, is_new) = (record.len(), record.is_empty());
        let mut optimizer = optimizer.clone().load_record(record);
        // burn begins anew with state that it cannot read.
        if !self.has_read(number) && optimizer.to_record().len() != tensors {
            let reason = format!("the optimizer cannot read the state of {path}: use the one that has written it");
            return Err(Error::StoreMismatch { reason });
        }
        self.note_read(number, true);
        let of_part = self.updated_part(number, part, is_new)?;
        let step = || self.step(&mut optimizer, rate, filled, gradients, number);
        let updated = match of_part {
            Some(of_part) => update_part(of_part, step)?,
            None => step()?,
        };
        // The state exists once more as a record and once as bytes: one after the other.
        let record = optimizer.to_record();
        drop(optimizer);
        let state = record.into_bytes().map_err(|e| unreadable(&e))?;
        self.write(blob(Content::State), &state)?;
        drop(state);
        let mut value = Value { streamed: self, number, value: None };
        updated.visit(&mut value);
        match value.value {
            Some(value) => self.write(blob(Content::Value), &value?),
            None => Ok(()),
        }
    }

    /// What an optimizer may ask about a part of a parameter, which may have no state yet. `None` for an undivided parameter.
    fn updated_part(&self, number: usize, part: usize, is_new: bool) -> Result<Option<UpdatedPart>, Error> {
        let entry = &self.layout().entries[number];
        if entry.parts() == 1 {
            return Ok(None);
        }
        // Values in f32 are not rounded with noise.
        let is_asked = is_new && entry.dtype != DType::F32;
        let beginning = is_asked.then(|| self.beginning(number, 64 * entry.dtype.size())).transpose()?;
        let first_element = entry.rows_of(part).start * entry.shape[1..].iter().product::<usize>();
        Ok(Some(UpdatedPart { shape: entry.shape.clone(), first_element, beginning }))
    }

    /// The first `count` bytes of a parameter's value after the last commit, or all of it.
    fn beginning(&self, number: usize, count: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![];
        for part in 0..self.layout().entries[number].parts() {
            let blob = Blob::new(number, Content::Value, part);
            bytes.extend(self.read(blob)?.ok_or_else(|| missing(blob))?);
            if bytes.len() >= count {
                break;
            }
        }
        bytes.truncate(count);
        Ok(bytes)
    }

    /// The optimizer's step for one parameter. Its gradient is in f32, also for a parameter in bf16, and burn's own optimizers panic on two
    /// dtypes.
    fn step<M: Module>(
        &self,
        optimizer: &mut ModuleOptimizer,
        rate: ModuleLearningRate,
        module: M,
        gradients: GradientsParams,
        number: usize,
    ) -> Result<M, Error> {
        let Entry { path, dtype, .. } = &self.layout().entries[number];
        if *dtype == DType::F32 {
            return Ok(optimizer.step(rate, module, gradients));
        }
        // What a panic leaves behind is dropped: the optimizer is a copy, and so is the parameter.
        catch_unwind(AssertUnwindSafe(|| optimizer.step(rate, module, gradients))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(|text| text.to_lowercase()).unwrap_or_default();
            if !text.contains("dtype") {
                resume_unwind(panic); // such as a device that has run out of memory
            }
            let reason = format!("the optimizer cannot update {path} of {dtype:?} with a gradient of F32");
            let reason = reason + ": use one that widens both, as StochasticBf16 of kiln-optimizers";
            Error::StoreMismatch { reason }
        })
    }

    fn is(&self, id: ParamId, number: usize) -> bool {
        self.layout().numbers.get(&id) == Some(&number)
    }
}

/// Reads the gradient of one parameter, which several fields may share.
struct Gradient<'a> {
    streamed: &'a Streamed,
    number: usize,
    part: usize,
    factor: f64,
    found: Option<Result<GradientsParams, Error>>,
}

impl ModuleVisitor for Gradient<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.found.is_some() || !self.streamed.is(param.id, self.number) {
            return;
        }
        let sum = self.streamed.sum_of::<D>(self.number, Some(self.part), &param.device().inner());
        self.found = Some(sum.map(|sum| {
            let mut gradients = GradientsParams::new();
            gradients.register(param.id, if self.factor == 1.0 { sum } else { sum * self.factor });
            gradients
        }));
    }
}

/// Takes the new value of one parameter. burn updates the first of several fields that share it.
struct Value<'a> {
    streamed: &'a Streamed,
    number: usize,
    value: Option<Result<Bytes, Error>>,
}

impl ModuleVisitor for Value<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.value.is_none() && self.streamed.is(param.id, self.number) {
            self.value = Some(bytes_of(param.val().inner()));
        }
    }
}
