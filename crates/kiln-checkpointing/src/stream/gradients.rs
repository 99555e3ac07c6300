//! Sums of gradients in a store.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};

use kiln_operations::first_sample;

use super::bytes::{bytes_of, missing, tensor};
use super::store::{Blob, Content};
use super::streamed::Streamed;
use super::values::read_parts;
use crate::Error;

impl Streamed {
    /// The sum of a parameter's gradients on `device`, in f32. `None` for a parameter without a gradient since the last commit.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn gradient<const D: usize>(&self, id: ParamId, device: &Device) -> Result<Option<Tensor<D>>, Error> {
        match self.layout().numbers.get(&id) {
            Some(number) if self.is_summed(*number) => self.sum_of(*number, None, device).map(Some),
            _ => Ok(None),
        }
    }

    /// The sum of a parameter's gradients, which exists, or of those of one part.
    pub(super) fn sum_of<const D: usize>(
        &self,
        number: usize,
        part: Option<usize>,
        device: &Device,
    ) -> Result<Tensor<D>, Error> {
        let (entry, content) = (&self.layout().entries[number], Content::Gradient);
        let bytes = read_parts(number, entry, content, part, |blob, bytes| self.read_sum(blob, bytes))?;
        let shape = part.map_or_else(|| entry.shape.clone(), |part| entry.shape_of(part));
        Ok(tensor(bytes, (&shape, entry.dtype_of(content)), device))
    }

    /// Adds a gradient to the sum of a parameter's gradients, of which one part is in memory at a time.
    pub(crate) fn add_to_sum<const D: usize>(&self, id: ParamId, gradient: Tensor<D>) -> Result<(), Error> {
        let Some(number) = self.layout().numbers.get(&id).copied() else { return Ok(()) };
        let (entry, content) = (&self.layout().entries[number], Content::Gradient);
        let mut sum = bytes_of(gradient.cast(DType::F32))?;
        for part in 0..entry.parts() {
            let (blob, part) = (Blob::new(number, content, part), &mut sum[entry.bytes_of(content, part)]);
            if self.is_summed(number) {
                self.add_stored(blob, part)?;
            }
            self.put(blob, part)?;
        }
        self.note_sum(number);
        self.lock().added.insert(number, first_sample());
        Ok(())
    }

    /// Takes the sum of a parameter's gradients in the micro-batches before out, for an operation that adds rows to it in their order and then
    /// [adds it](Self::add_to_sum) again. The gradient of another operation in this micro-batch is added as a whole: `None`.
    pub(crate) fn take_sum<const D: usize>(&self, id: ParamId, device: &Device) -> Result<Option<Tensor<D>>, Error> {
        let Some(number) = self.layout().numbers.get(&id) else { return Ok(None) };
        if self.lock().added.get(number) == Some(&first_sample()) {
            return Ok(None);
        }
        let sum = self.gradient(id, device)?;
        self.lock().summed.remove(number);
        Ok(sum)
    }

    /// Reads a sum of gradients into `sum`. Where operations have sums of their own, which are without their factors, it is the sum of those,
    /// each times its factor.
    pub(super) fn read_sum(&self, blob: Blob, sum: &mut [u8]) -> Result<bool, Error> {
        let is_there = self.read_into(blob, sum)?;
        let factor = |content| self.lock().factors.get(&(blob.parameter, content)).copied();
        multiply(sum, factor(Content::Gradient).unwrap_or(1.0));
        if let Some(factor) = factor(Content::Partial) {
            let other = Blob { content: Content::Partial, ..blob };
            let mut of_other = self.read(other)?.ok_or_else(|| missing(other))?;
            multiply(&mut of_other, factor);
            add(sum, &of_other);
        }
        Ok(is_there)
    }

    /// Adds what a blob has to values of f32 in the memory order of the machine.
    pub(super) fn add_stored(&self, blob: Blob, values: &mut [u8]) -> Result<(), Error> {
        let stored = self.read(blob)?.ok_or_else(|| missing(blob))?;
        if stored.len() != values.len() {
            let reason = format!("it has {} bytes, expected {}", stored.len(), values.len());
            return Err(Error::Store { path: blob.to_string(), reason });
        }
        add(values, &stored);
        Ok(())
    }

    /// Adds the gradients of resident parameters of `module` to their sums.
    ///
    /// # Errors
    /// [`Error::Store`]; some may have been added.
    pub fn add_gradients<M: Module>(&self, module: &M, gradients: GradientsParams) -> Result<(), Error> {
        struct Add<'a>(&'a Streamed, GradientsParams, Result<(), Error>);
        impl ModuleVisitor for Add<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let (Ok(()), Some(gradient)) = (&self.2, self.1.remove::<D>(param.id)) {
                    self.2 = self.0.add_to_sum(param.id, gradient);
                }
            }
        }
        let mut add = Add(self, gradients, Ok(()));
        module.visit(&mut add);
        add.2
    }
}

/// Adds values of f32 in the memory order of the machine to others.
fn add(values: &mut [u8], others: &[u8]) {
    for (value, other) in values.as_chunks_mut().0.iter_mut().zip(others.as_chunks().0) {
        *value = (f32::from_ne_bytes(*other) + f32::from_ne_bytes(*value)).to_ne_bytes();
    }
}

/// Multiplies values of f32 in the memory order of the machine.
fn multiply(values: &mut [u8], factor: f32) {
    if factor != 1.0 {
        let values = values.as_chunks_mut().0.iter_mut();
        values.for_each(|value| *value = (f32::from_ne_bytes(*value) * factor).to_ne_bytes());
    }
}
