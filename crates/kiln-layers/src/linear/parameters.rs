//! The parameters of linear layers among the inputs of an operation, with the low-rank changes that weights may have.

use burn::backend::DispatchTensor;
use burn::tensor::{Device, Tensor};
use kiln_operations::{LowRankWeight, all};

/// A, B and s of a low-rank change, and the magnitudes of the outputs (DoRA), which have no elements if there are none.
pub(crate) type Change<T> = [T; 4];

/// The parameters of a linear layer.
pub(crate) struct Parameters {
    pub(crate) weight: Tensor<2>,
    /// Has no elements if there is none.
    pub(crate) bias: Tensor<1>,
    change: Option<Change<DispatchTensor>>,
}

impl Parameters {
    pub(super) fn plain(weight: Tensor<2>, bias: Tensor<1>) -> Self {
        Self { weight, bias, change: None }
    }

    pub(super) fn changed(parts: LowRankWeight, bias: Tensor<1>, device: &Device) -> Self {
        let LowRankWeight { weight, a, b, scale, magnitude } = parts;
        let magnitude = magnitude.unwrap_or_else(|| Tensor::empty([0], (device, a.dtype())));
        let scales = [scale.into_dispatch(), magnitude.into_dispatch()];
        let [s, magnitude] = scales;
        Self { weight, bias, change: Some([a.into_dispatch(), b.into_dispatch(), s, magnitude]) }
    }

    /// Weight and bias, and the change, if there is one.
    pub(crate) fn into_inputs(self) -> ([DispatchTensor; 2], Option<Change<DispatchTensor>>) {
        ([self.weight.into_dispatch(), self.bias.into_dispatch()], self.change)
    }
}

/// A weight and its change.
#[derive(Clone, Debug)]
pub(crate) struct Weight<T> {
    pub(crate) weight: T,
    pub(crate) change: Option<Change<T>>,
}

/// Which of the layers of an operation have a low-rank change. The tensors of the changes are the last inputs of the operation.
#[derive(Clone, Debug)]
pub(crate) struct Changed(pub(super) Vec<bool>);

impl Changed {
    /// Adds the changes to the inputs of an operation.
    pub(crate) fn append(
        inputs: &mut Vec<DispatchTensor>,
        changes: impl IntoIterator<Item = Option<Change<DispatchTensor>>>,
    ) -> Self {
        let append = |change: Option<Change<DispatchTensor>>| {
            let changed = change.is_some();
            inputs.extend(change.into_iter().flatten());
            changed
        };
        Self(changes.into_iter().map(append).collect())
    }

    /// Takes what belongs to the changes from the end of a list with an item for each input, and returns it by layer.
    pub(crate) fn take<T>(&self, items: &mut Vec<T>) -> Vec<Option<Change<T>>> {
        let count = 4 * self.0.iter().filter(|changed| **changed).count();
        let mut last = items.split_off(items.len() - count).into_iter();
        self.0.iter().map(|changed| changed.then(|| all(last.by_ref().take(4).collect()))).collect()
    }
}

/// All inputs of an operation but the first, of as many as it has.
pub(crate) const PARAMETERS: &[usize] =
    &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27];
