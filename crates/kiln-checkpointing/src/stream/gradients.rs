//! Sums of gradients in a store.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bytes, Device, Tensor};

use super::bytes::{bytes_of, tensor};
use super::store::{Blob, Content};
use super::streamed::Streamed;
use super::values::read_parts;
use super::writer::Put;
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
        let bytes = read_parts(number, entry, content, part, |blob| self.read(blob))?;
        let shape = part.map_or_else(|| entry.shape.clone(), |part| entry.shape_of(part));
        tensor(Blob::new(number, content, part.unwrap_or(0)), bytes, &shape, device)
    }

    /// Adds a gradient to the sum of a parameter's gradients.
    pub(crate) fn add_to_sum<const D: usize>(&self, id: ParamId, gradient: Tensor<D>) -> Result<(), Error> {
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

    /// Begins to put sums of gradients, as bytes in f32, in the places of those before. An error is that of the next use of gradients.
    pub(crate) fn put_sums(&self, sums: Vec<(ParamId, Bytes)>) -> Result<(), Error> {
        let mut puts = vec![];
        for (id, bytes) in sums {
            let Some(number) = self.layout().numbers.get(&id).copied() else { continue };
            let entry = &self.layout().entries[number];
            let blob = |part| (Blob::new(number, Content::Gradient, part), entry.bytes_of(part));
            puts.push(Put { bytes, blobs: (0..entry.parts()).map(blob).collect() });
            self.note_sum(number);
        }
        self.begin_to_put(puts)
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
