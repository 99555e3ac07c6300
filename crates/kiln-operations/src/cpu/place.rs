//! Tensors of burn's CPU device that an update writes in place.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Element;
use bytemuck::{Pod, Zeroable};

use super::stored::tensor;

/// The memory into which the next values of a tensor are written.
pub enum Place<E> {
    /// The memory of the tensor itself.
    Same(FlexTensor),
    /// New memory, since another handle to the tensor exists.
    New(FlexTensor, Vec<E>),
}

impl<E: Element + Pod + Send + Sync> Place<E> {
    /// Chooses the tensor's own memory if no other handle to it exists. A tensor that is not contiguous is copied first.
    pub fn of(values: FlexTensor) -> Self {
        let contiguous = values.to_contiguous();
        drop(values); // or else it would count as somebody else
        match contiguous.is_unique() {
            true => Self::Same(contiguous),
            false => {
                let next = vec![E::zeroed(); contiguous.shape().num_elements()];
                Self::New(contiguous, next)
            }
        }
    }

    /// The values, to be changed.
    pub fn values(&mut self) -> Values<'_, E> {
        match self {
            Self::Same(tensor) => Values { next: tensor.storage_mut(), last: None },
            Self::New(tensor, next) => Values { next, last: Some(tensor.storage()) },
        }
    }

    /// The tensor after the change.
    pub fn tensor(self) -> FlexTensor {
        match self {
            Self::Same(tensor) => tensor,
            Self::New(last, next) => tensor(next, last.shape()),
        }
    }
}

/// Values that a step changes.
pub struct Values<'a, E> {
    next: &'a mut [E],
    /// The values before the step, if they are not in `next`.
    last: Option<&'a [E]>,
}

impl<'a, E: Zeroable + Copy> Values<'a, E> {
    /// Takes off the first `count` values, or all if there are fewer.
    pub fn split_off(&mut self, count: usize) -> Self {
        let count = count.min(self.next.len());
        Self {
            next: self.next.split_off_mut(..count).unwrap_or_default(),
            last: self.last.as_mut().and_then(|last| last.split_off(..count)),
        }
    }

    /// Copies the values before the step to the place of the next ones, and returns them to be changed.
    pub fn filled(self) -> &'a mut [E] {
        if let Some(last) = self.last {
            self.next.copy_from_slice(last);
        }
        self.next
    }
}
