//! The parameters of linear layers among the inputs of an operation, with the codes and the low-rank changes that weights may have.

use burn::backend::tensor::FloatTensor;
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Device, Tensor};
use kiln_operations::{FourBitWeight, KernelBackend, LowRankChange, WeightParts, all, widened_four_bits};

/// A, B and s of a low-rank change, and the magnitudes of the outputs (DoRA), which have no elements if there are none.
pub(crate) type Change<T> = [T; 4];

/// Levels, codes and scales of a weight of four bits.
pub(crate) type Codes<T> = [T; 3];

/// The parameters of a linear layer.
pub(crate) struct Parameters {
    /// With codes it has the shape of the weight alone.
    pub(crate) weight: Tensor<2>,
    /// Has no elements if there is none.
    pub(crate) bias: Tensor<1>,
    parts: Parts<DispatchTensor>,
}

impl Parameters {
    pub(super) fn plain(weight: Tensor<2>, bias: Tensor<1>) -> Self {
        Self { weight, bias, parts: Parts { codes: None, change: None } }
    }

    pub(super) fn in_parts(parts: WeightParts, bias: Tensor<1>, device: &Device) -> Self {
        let WeightParts { weight, codes, change } = parts;
        let codes = codes.map(|FourBitWeight { levels, codes, scales }| {
            [levels.into_dispatch(), codes.into_dispatch(), scales.into_dispatch()]
        });
        let change = change.map(|LowRankChange { a, b, scale, magnitude }| {
            let magnitude = magnitude.unwrap_or_else(|| Tensor::empty([0], (device, a.dtype())));
            [a.into_dispatch(), b.into_dispatch(), scale.into_dispatch(), magnitude.into_dispatch()]
        });
        Self { weight, bias, parts: Parts { codes, change } }
    }

    /// Weight and bias, and the other parts of the weight.
    pub(crate) fn into_inputs(self) -> ([DispatchTensor; 2], Parts<DispatchTensor>) {
        ([self.weight.into_dispatch(), self.bias.into_dispatch()], self.parts)
    }
}

/// What a weight is computed with.
#[derive(Clone, Debug)]
pub(crate) struct Parts<T> {
    /// The values of the weight.
    pub(crate) codes: Option<Codes<T>>,
    /// What is added to them.
    pub(crate) change: Option<Change<T>>,
}

impl<T> Parts<T> {
    /// Whether there are any.
    pub(super) fn is_any(&self) -> bool {
        self.codes.is_some() || self.change.is_some()
    }
}

/// A weight and its parts.
#[derive(Clone, Debug)]
pub(crate) struct Weight<T> {
    /// With codes it has the shape of the weight alone.
    pub(crate) weight: T,
    pub(crate) parts: Parts<T>,
}

/// The values of a weight for rows in `dtype`.
pub(super) fn values<B: KernelBackend>(
    weight: FloatTensor<B>,
    codes: Option<Codes<FloatTensor<B>>>,
    dtype: DType,
) -> FloatTensor<B> {
    match codes {
        Some(codes) => widened_four_bits::<B>(codes, weight.shape().dims(), dtype),
        None => weight,
    }
}

/// The parts of the weights of an operation's layers. Their tensors are its last inputs: first all low-rank changes, then the codes, which have
/// no gradient.
#[derive(Clone, Debug)]
pub(crate) struct Appended {
    /// Whether each layer has a low-rank change.
    changed: Vec<bool>,
    /// Whether each layer has codes.
    coded: Vec<bool>,
}

impl Appended {
    /// Adds the parts to the inputs of an operation.
    pub(crate) fn append(
        inputs: &mut Vec<DispatchTensor>,
        parts: impl IntoIterator<Item = Parts<DispatchTensor>>,
    ) -> Self {
        let (codes, changes): (Vec<_>, Vec<_>) = parts.into_iter().map(|parts| (parts.codes, parts.change)).unzip();
        let (coded, changed) =
            (codes.iter().map(Option::is_some).collect(), changes.iter().map(Option::is_some).collect());
        inputs.extend(changes.into_iter().flatten().flatten());
        inputs.extend(codes.into_iter().flatten().flatten());
        Self { changed, coded }
    }

    /// How many rows of the layers' outputs stand in the last dimension of each of these inputs, where the outputs are `rows` of them. `None`
    /// with codes, which are no matrices.
    pub(crate) fn rows_of_outputs(&self, rows: usize) -> Option<Vec<usize>> {
        let of_layer = |_| [0, rows, 0, rows];
        let changed = self.changed.iter().filter(|changed| **changed);
        (!self.coded.contains(&true)).then(|| changed.flat_map(of_layer).collect())
    }

    /// Takes the parts from the end of a list of all inputs, and returns them by layer.
    pub(crate) fn take<T>(&self, inputs: &mut Vec<T>) -> Vec<Parts<T>> {
        let codes = taken(&self.coded, inputs);
        let changes = taken(&self.changed, inputs);
        codes.into_iter().zip(changes).map(|(codes, change)| Parts { codes, change }).collect()
    }

    /// Takes what belongs to the parts from the end of a list with an item for each input, and returns that of the changes by layer.
    pub(crate) fn take_changes<T>(&self, items: &mut Vec<T>) -> Vec<Option<Change<T>>> {
        self.take(items).into_iter().map(|parts| parts.change).collect()
    }
}

/// Takes `N` items for each layer that has some from the end of a list.
fn taken<T, const N: usize>(has: &[bool], items: &mut Vec<T>) -> Vec<Option<[T; N]>> {
    let count = N * has.iter().filter(|has| **has).count();
    let mut last = items.split_off(items.len() - count).into_iter();
    has.iter().map(|has| has.then(|| all(last.by_ref().take(N).collect()))).collect()
}

/// All inputs of an operation but the first, of as many as it has.
pub(crate) const PARAMETERS: &[usize] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 35,
];
