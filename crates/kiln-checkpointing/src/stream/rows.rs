//! A matrix in a store that operations read some rows at a time: an embedding, and a loss over many classes.

use std::fmt;
use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_operations::{RowParts, SumError, first_sample};

use super::layout::Entry;
use super::store::{Blob, Content};
use super::streamed::Streamed;
use crate::Error;

/// A parameter whose value is in a store alone, in the parts that it is updated in. Operations read it in f32. The gradients of one in bf16
/// are in bf16, as those of a parameter in memory, and summed in f32.
///
/// Where rows are added in their order, the two operations that may use it have a sum each: the one whose backward pass is first has
/// [`Content::Partial`].
struct Rows {
    streamed: Streamed,
    number: usize,
}

impl Streamed {
    /// The rows of a matrix for operations that read some at a time, such as `kiln_layers::embedding_by_rows`. `None` for a parameter whose value is
    /// in memory, and for one that is not divided into [parts](crate::Creation::parts).
    ///
    /// Several operations of a pass may use them. Their gradients are added as burn adds those of a parameter in memory: the last
    /// operation's first, and their sum to that of the micro-batches before.
    pub fn rows(&self, id: ParamId) -> Option<Arc<dyn RowParts>> {
        let number = self.layout().numbers.get(&id).copied()?;
        let entry = &self.layout().entries[number];
        let in_parts = entry.shape.len() == 2 && entry.parts() > 1 && self.has(id);
        in_parts.then(|| Arc::new(Rows { streamed: self.clone(), number }) as Arc<dyn RowParts>)
    }

    /// Whether a parameter has a gradient since the last commit.
    pub fn has_gradient(&self, id: ParamId) -> bool {
        self.layout().numbers.get(&id).is_some_and(|number| self.is_summed(*number))
    }

    /// The sum of the gradients of one part of a matrix on `device`, in f32.
    ///
    /// # Errors
    /// [`Error::Store`], also without a gradient since the last commit; [`Error::StoreMismatch`] for a parameter that is not in the store.
    pub fn gradient_of_part(&self, id: ParamId, part: usize, device: &Device) -> Result<Tensor<2>, Error> {
        self.sum_of(self.number(id)?, Some(part), device)
    }
}

impl Rows {
    fn entry(&self) -> &Entry {
        &self.streamed.layout().entries[self.number]
    }

    fn blob(&self, content: Content, part: usize) -> Blob {
        Blob::new(self.number, content, part)
    }

    /// One more operation has added its gradient. When all have, the next micro-batch begins.
    fn end_use(&self) {
        let uses = &mut self.streamed.lock().uses;
        if !uses.entry(self.number).or_default().end() {
            uses.remove(&self.number);
        }
    }

    fn add(&self, part: usize, gradient: TensorData) -> Result<(), Error> {
        let (entry, shape) = (self.entry(), self.entry().shape_of(part));
        let in_f32 = |bytes| TensorData::from_bytes(bytes, shape.clone(), DType::F32);
        let mut gradient = gradient.into_bytes();
        let uses = self.streamed.lock().uses.get(&self.number).copied().unwrap_or_default();
        let (first, last) = uses.first_and_last();
        if !first {
            self.streamed.add_stored(self.blob(Content::Partial, part), &mut gradient)?;
            if entry.dtype != DType::F32 {
                gradient = in_f32(gradient).convert_dtype(entry.dtype).convert_dtype(DType::F32).into_bytes();
            }
        }
        if last && self.streamed.is_summed(self.number) {
            self.streamed.add_stored(self.blob(Content::Gradient, part), &mut gradient)?;
        }
        let content = if last { Content::Gradient } else { Content::Partial };
        self.streamed.put(self.blob(content, part), &gradient)?;
        if part + 1 == self.entry().parts() {
            self.end_use();
            if last {
                self.streamed.note_sum(self.number);
            }
        }
        Ok(())
    }
}

impl Rows {
    /// Where the sum of the operation is whose backward pass runs.
    fn own_sum(&self) -> Result<Content, Error> {
        let uses = self.streamed.lock().uses.get(&self.number).copied().unwrap_or_default();
        match uses.first_and_last() {
            (_, true) => Ok(Content::Gradient),
            (true, false) => Ok(Content::Partial),
            (false, false) => Err(Error::Store {
                path: self.entry().path.clone(),
                reason: "more than two operations use it, expected whole batches where rows are added in their order"
                    .into(),
            }),
        }
    }

    /// Whether more operations use it than have sums of their own. Their gradients are added as a whole, which is the same for a whole batch.
    fn is_shared(&self) -> bool {
        self.streamed.lock().uses.get(&self.number).is_some_and(|uses| uses.count() > 2) && first_sample() == 0
    }

    fn take(&self, part: usize) -> Result<Option<TensorData>, Error> {
        if self.is_shared() {
            return Ok(None);
        }
        let content = self.own_sum()?;
        if !self.streamed.lock().factors.contains_key(&(self.number, content)) {
            return Ok(None);
        }
        self.streamed.data(self.blob(content, part), self.entry().shape_of(part), DType::F32).map(Some)
    }

    fn put(&self, part: usize, sum: TensorData, factor: f32) -> Result<(), Error> {
        if self.is_shared() {
            let shape = sum.shape().clone();
            let gradient: Vec<f32> = sum.iter::<f32>().map(|value| value * factor).collect();
            return self.add(part, TensorData::new(gradient, shape));
        }
        let content = self.own_sum()?;
        self.streamed.put(self.blob(content, part), &sum.into_bytes())?;
        if part + 1 == self.entry().parts() {
            self.end_use();
            let before = self.streamed.lock().factors.insert((self.number, content), factor);
            if content == Content::Gradient {
                self.streamed.note_sum(self.number);
            }
            if let Some(before) = before.filter(|before| *before != factor) {
                return Err(SumError::Factors(before, factor).into());
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in a store", self.entry().path)
    }
}

impl RowParts for Rows {
    fn shape(&self) -> [usize; 2] {
        let shape = &self.entry().shape;
        [shape[0], shape[1]]
    }

    fn rows_of_part(&self) -> usize {
        self.entry().rows
    }

    fn read(&self, part: usize) -> TensorData {
        let (blob, shape) = (self.blob(Content::Value, part), self.entry().shape_of(part));
        match self.streamed.data(blob, shape.clone(), self.entry().dtype) {
            Ok(data) => data.convert_dtype(DType::F32),
            Err(error) => {
                self.streamed.note_failure(&error);
                TensorData::full(shape, f32::NAN)
            }
        }
    }

    fn begin_use(&self) {
        self.streamed.lock().uses.entry(self.number).or_default().begin();
    }

    fn add_gradient(&self, part: usize, gradient: TensorData) {
        if let Err(error) = self.add(part, gradient) {
            self.streamed.note_failure(&error);
        }
    }

    fn take_sum(&self, part: usize) -> Option<TensorData> {
        self.take(part).unwrap_or_else(|error| {
            self.streamed.note_failure(&error);
            None
        })
    }

    fn put_sum(&self, part: usize, sum: TensorData, factor: f32) {
        if let Err(error) = self.put(part, sum, factor) {
            self.streamed.note_failure(&error);
        }
    }
}
