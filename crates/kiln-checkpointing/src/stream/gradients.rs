//! Sums of gradients in a store.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bytes, DType, Device, Tensor};

use super::bytes::{bytes_of, tensor};
use super::store::{Blob, Content};
use super::streamed::Streamed;
use super::values::{read_parts, write_parts};
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
        let bytes = read_parts(number, entry, content, part, |blob, bytes| self.read_into(blob, bytes))?;
        let shape = part.map_or_else(|| entry.shape.clone(), |part| entry.shape_of(part));
        tensor(Blob::new(number, content, part.unwrap_or(0)), bytes, (&shape, entry.dtype_of(content)), device)
    }

    /// Adds a gradient to the sum of a parameter's gradients.
    pub(crate) fn add_to_sum<const D: usize>(&self, id: ParamId, gradient: Tensor<D>) -> Result<(), Error> {
        let gradient = gradient.cast(DType::F32);
        let sum = match self.gradient::<D>(id, &gradient.device())? {
            Some(sum) => sum + gradient,
            None => gradient,
        };
        self.put_sum(id, sum)
    }

    /// Puts the sum of a parameter's gradients, in f32, in the place of the one before.
    fn put_sum<const D: usize>(&self, id: ParamId, sum: Tensor<D>) -> Result<(), Error> {
        self.put_sums(vec![(id, bytes_of(sum)?)])
    }

    /// Puts sums of gradients, as bytes in f32, in the places of those before. Each is in memory until it is written: written while the next
    /// segment runs, they would be a part of its peak.
    pub(crate) fn put_sums(&self, sums: Vec<(ParamId, Bytes)>) -> Result<(), Error> {
        for (id, bytes) in sums {
            let Some(number) = self.layout().numbers.get(&id).copied() else { continue };
            let entry = &self.layout().entries[number];
            write_parts(number, entry, Content::Gradient, &bytes, |blob, part| self.put(blob, part))?;
            self.note_sum(number);
        }
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
