//! Flat tensors that are cut into pieces, joined again, and summed.

use burn::tensor::{DType, Device, Tensor};

/// The lengths of `pieces` pieces of `elements` elements. They differ by at most one, the longer ones come first.
pub(super) fn even_lengths(elements: usize, pieces: usize) -> Vec<usize> {
    (0..pieces).map(|piece| elements / pieces + usize::from(piece < elements % pieces)).collect()
}

/// `values` in pieces of these lengths, whose sum is the length of `values`. Lengths of 0 are possible.
pub(super) fn cut(values: &Tensor<1>, lengths: &[usize]) -> Vec<Tensor<1>> {
    let mut start = 0;
    let piece = |length: &usize| {
        let from = start;
        start += length;
        match length {
            // burn refuses empty ranges.
            0 => nothing(&values.device()),
            _ => values.clone().narrow(0, from, *length),
        }
    };
    lengths.iter().map(piece).collect()
}

/// The pieces in one tensor on `device`.
pub(super) fn joined(pieces: impl IntoIterator<Item = Tensor<1>>, device: &Device) -> Tensor<1> {
    let not_empty = pieces.into_iter().filter(|piece| length(piece) > 0);
    let mut pieces: Vec<Tensor<1>> = not_empty.map(|piece| piece.to_device(device)).collect();
    match pieces.len() {
        0 => nothing(device),
        1 => pieces.remove(0),
        _ => Tensor::cat(pieces, 0),
    }
}

/// The sum of tensors of the same length, added in their order on `device`.
pub(super) fn summed(values: impl IntoIterator<Item = Tensor<1>>, device: &Device) -> Tensor<1> {
    let values = values.into_iter().map(|values| values.to_device(device));
    let sum = values.reduce(|sum, next| if length(&sum) == 0 { sum } else { sum + next });
    sum.unwrap_or_else(|| nothing(device))
}

/// A tensor without elements.
pub(super) fn nothing(device: &Device) -> Tensor<1> {
    Tensor::zeros([0], (device, DType::F32))
}

/// The number of elements.
pub(super) fn length(values: &Tensor<1>) -> usize {
    let [length] = values.dims();
    length
}

/// The lengths of tensors.
pub(super) fn lengths(values: &[Tensor<1>]) -> Vec<usize> {
    values.iter().map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pieces_are_even() {
        assert_eq!(even_lengths(7, 3), [3, 2, 2]);
        assert_eq!(even_lengths(2, 4), [1, 1, 0, 0]);
        assert_eq!(even_lengths(0, 2), [0, 0]);
    }

    proptest! {
        #[test]
        fn pieces_join_to_what_was_cut(lengths in prop::collection::vec(0_usize..5, 1..8)) {
            let device = Device::flex();
            let elements: usize = lengths.iter().sum();
            let values: Vec<f32> = (0..elements).map(|i| i as f32).collect();
            let pieces = cut(&Tensor::from_floats(values.as_slice(), &device), &lengths);
            prop_assert_eq!(super::lengths(&pieces), lengths);
            let joined = joined(pieces, &device).into_data().try_to_vec::<f32>().unwrap();
            prop_assert_eq!(joined, values);
        }
    }
}
