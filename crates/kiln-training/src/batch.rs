//! Batches on the host, and their parts: a step cuts them into micro-batches, an evaluation into parts that fit into memory.

use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use kiln_accumulation::Weight;
use kiln_data::{DocumentBatch, ImageBatch, Samples, TextBatch, TileBatch, TokenBatch};
use kiln_recovery::{AttemptOutcome, attempt};

use crate::error::Error;

/// A batch of samples in host memory.
///
/// It stays on the host until it is dropped, so that a step that ran out of memory can be tried again with the same data. Implemented
/// for kiln-data's batches, for `Vec`s of samples, for burn's `TensorData` and tensors (the first axis counts the samples), and for
/// tuples of up to three of them. Tensors should be on the host's device, `Device::flex()`; a task copies them with
/// [`Pass::input`](crate::Pass::input).
///
/// ```
/// use burn::tensor::TensorData;
/// use kiln_training::Batch;
///
/// let inputs = TensorData::new(vec![0.0f32; 12], [4, 3]);
/// let labels = vec![0_i64, 1, 0, 1];
/// let part = (inputs, labels).slice(1..3);
/// assert_eq!(part.len(), 2);
/// assert_eq!(part.0.shape().as_slice(), [2, 3]);
/// ```
pub trait Batch: Send + Sized + 'static {
    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples with indices `samples`, as a batch of their own.
    ///
    /// # Panics
    /// May panic when the range exceeds the batch; a step never asks for that.
    fn slice(&self, samples: Range<usize>) -> Self;

    /// Bytes of host memory that [slices](Self::slice) of all its samples take beside the batch.
    fn slice_bytes(&self) -> u64;

    /// The quantity that the mean loss is averaged over: samples, or tokens that carry a loss.
    fn weight(&self) -> Weight {
        Weight::Samples(self.len())
    }

    /// A number that is equal for batches that differ only in the number of samples. The micro-batch that fits is remembered for each
    /// key: return the sequence length, say, if lengths differ from batch to batch.
    fn shape_key(&self) -> u64 {
        0
    }
}

impl Batch for ImageBatch {
    fn len(&self) -> usize {
        self.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        self.slice(samples)
    }

    fn slice_bytes(&self) -> u64 {
        let second = self.mixed.as_ref().map_or(0, |mixed| mixed.labels.len());
        (16 * self.labels.len() + 8 * second) as u64 // slices share the pixels
    }
}

impl Batch for TextBatch {
    fn len(&self) -> usize {
        self.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        self.slice(samples)
    }

    fn slice_bytes(&self) -> u64 {
        (4 * self.tokens.len() + 8 * self.ids.len()) as u64
    }

    fn weight(&self) -> Weight {
        Weight::Tokens(self.targets())
    }
}

/// The mean loss is over the learned tokens.
impl Batch for DocumentBatch {
    fn len(&self) -> usize {
        self.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        self.slice(samples)
    }

    fn slice_bytes(&self) -> u64 {
        (5 * self.tokens.len() + 4 * self.lengths.len() + 8 * self.ids.len()) as u64
    }

    fn weight(&self) -> Weight {
        Weight::Tokens(self.targets())
    }

    /// The number of tokens of the longest document, rounded up to a power of two: batches up to it take the same memory or less.
    fn shape_key(&self) -> u64 {
        self.shape()[1].next_power_of_two() as u64
    }
}

/// The mean loss is over the tokens to predict.
impl Batch for TokenBatch {
    fn len(&self) -> usize {
        self.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        self.slice(samples)
    }

    fn slice_bytes(&self) -> u64 {
        match self {
            Self::Windows(batch) => batch.slice_bytes(),
            Self::Documents(batch) => batch.slice_bytes(),
        }
    }

    fn weight(&self) -> Weight {
        Weight::Tokens(self.targets())
    }

    fn shape_key(&self) -> u64 {
        match self {
            Self::Windows(batch) => batch.shape_key(),
            Self::Documents(batch) => batch.shape_key(),
        }
    }
}

impl Batch for TileBatch {
    fn len(&self) -> usize {
        self.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        self.slice(samples)
    }

    fn slice_bytes(&self) -> u64 {
        let samples = match &self.samples {
            Samples::U8(samples) => samples.len(),
            Samples::F32(samples) => 4 * samples.len(),
            _ => 4 * self.shape.iter().product::<usize>(),
        };
        let masks = self.masks.as_ref().map_or(0, |_| 4 * self.shape[0] * self.shape[2] * self.shape[3]);
        (samples + masks + 8 * self.ids.len()) as u64
    }
}

impl<T: Clone + Send + 'static> Batch for Vec<T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        self[samples].to_vec()
    }

    /// Bytes of the samples themselves, without memory that they point to.
    fn slice_bytes(&self) -> u64 {
        size_of_val(self.as_slice()) as u64
    }
}

impl Batch for TensorData {
    fn len(&self) -> usize {
        self.shape().as_slice().first().copied().unwrap_or(0)
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        let all = Batch::len(self).max(1);
        let each = self.as_bytes().len() / all;
        let bytes = self.as_bytes()[samples.start * each..samples.end * each].to_vec();
        let mut shape = self.shape().clone();
        if let Some(first) = shape.as_mut_slice().first_mut() {
            *first = samples.len();
        }
        Self::from_bytes_vec(bytes, shape, self.dtype())
    }

    fn slice_bytes(&self) -> u64 {
        self.as_bytes().len() as u64
    }
}

macro_rules! tensors {
    ($($tensor:ty),*) => {$(
        impl<const D: usize> Batch for $tensor {
            fn len(&self) -> usize {
                self.dims().first().copied().unwrap_or(0)
            }

            fn slice(&self, samples: Range<usize>) -> Self {
                self.clone().slice_dim(0, samples)
            }

            fn slice_bytes(&self) -> u64 {
                (self.shape().num_elements() * self.dtype().size()) as u64
            }
        }
    )*};
}

tensors!(Tensor<D>, Tensor<D, Int>, Tensor<D, Bool>);

macro_rules! tuples {
    ($first:ident $(, $other:ident)+) => {
        /// All parts hold the same samples in the same order; the first one counts them.
        impl<$first: Batch, $($other: Batch),+> Batch for ($first, $($other),+) {
            fn len(&self) -> usize {
                self.0.len()
            }

            #[allow(non_snake_case, reason = "one name serves type and value")]
            fn slice(&self, samples: Range<usize>) -> Self {
                let ($first, $($other),+) = self;
                ($first.slice(samples.clone()), $($other.slice(samples.clone())),+)
            }

            #[allow(non_snake_case, reason = "one name serves type and value")]
            fn slice_bytes(&self) -> u64 {
                let ($first, $($other),+) = self;
                $first.slice_bytes() $(+ $other.slice_bytes())+
            }

            fn weight(&self) -> Weight {
                self.0.weight()
            }

            fn shape_key(&self) -> u64 {
                self.0.shape_key()
            }
        }
    };
}

tuples!(A, B);
tuples!(A, B, C);

/// A batch as the loader made it, or some of its samples.
pub(crate) enum Part<'a, B> {
    Whole(&'a B),
    Slice(B),
}

impl<B> Part<'_, B> {
    pub(crate) fn batch(&self) -> &B {
        match self {
            Self::Whole(batch) => batch,
            Self::Slice(batch) => batch,
        }
    }
}

/// Runs `work` on the batches, with at most `at_once` samples of a batch on the device. When memory runs out it halves that number and
/// continues. `done` gets each part and its result, in order. Batches without a readable sample are skipped.
pub(crate) fn in_parts<B: Batch, R>(
    batches: impl Iterator<Item = Result<B, Error>>,
    device: &Device,
    at_once: impl Fn(&B) -> usize,
    mut work: impl FnMut(&B) -> Result<R, Error>,
    mut done: impl FnMut(&B, R) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut room = usize::MAX;
    for batch in batches {
        let batch = match batch {
            Err(Error::Data(kiln_data::Error::NothingLeft { .. })) => continue,
            batch => batch?,
        };
        let samples = batch.len();
        let mut next = 0;
        while next < samples {
            let range = next..samples.min(next.saturating_add(room.min(at_once(&batch)).max(1)));
            let part =
                if range.len() == samples { Part::Whole(&batch) } else { Part::Slice(batch.slice(range.clone())) };
            match attempt(device, || work(part.batch()), |_, _| {}) {
                AttemptOutcome::Done(result) => {
                    done(part.batch(), result)?;
                    next = range.end;
                }
                AttemptOutcome::Failed(failure) if range.len() > 1 => {
                    room = range.len() / 2;
                    tracing::warn!("evaluation: {failure}; continuing with {room} samples at once");
                }
                AttemptOutcome::Failed(failure) => return Err(Error::Memory(failure)),
                AttemptOutcome::Other(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_data_is_cut_along_its_first_axis() {
        let data = TensorData::new((0..24).map(|i| i as f32).collect::<Vec<_>>(), [4, 3, 2]);
        let part = Batch::slice(&data, 1..3);
        assert_eq!(part.shape().as_slice(), [2, 3, 2]);
        assert_eq!(part.try_to_vec::<f32>().unwrap(), (6..18).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!((Batch::len(&data), data.slice_bytes()), (4, 96));
    }

    #[test]
    fn documents_weigh_as_many_tokens_as_are_learned() {
        let learned = vec![false, true, true, false, false, false, true];
        let batch = DocumentBatch { tokens: vec![1; 7], lengths: vec![4, 3], learned, ids: vec![0, 1], padded: 4 };
        let batch = TokenBatch::from(batch);
        assert_eq!((batch.weight(), batch.shape_key()), (Weight::Tokens(3), 4));
        let parts = [0..1, 1..2].map(|part| Batch::slice(&batch, part));
        assert_eq!(parts.each_ref().map(Batch::weight), [2, 1].map(Weight::Tokens));
        assert_eq!(parts.iter().map(Batch::slice_bytes).sum::<u64>(), batch.slice_bytes());
    }

    #[test]
    fn tensors_and_tuples_are_cut_together() {
        let device = Device::flex();
        let x = Tensor::<2>::from_data([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], &device);
        let batch = (x, vec!['a', 'b', 'c']);
        let part = batch.slice(1..3);
        assert_eq!(part.0.into_data().try_to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(part.1, ['b', 'c']);
        assert_eq!(batch.weight(), Weight::Samples(3));
        assert_eq!(batch.slice_bytes(), 24 + 12);
    }
}
