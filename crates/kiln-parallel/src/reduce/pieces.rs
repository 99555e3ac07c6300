//! Flat tensors: cut into pieces, joined again, summed, and grouped into buckets, so that one operation serves many small tensors.

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
    Tensor::empty([0], (device, DType::F32))
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

/// Bytes of a bucket, as PyTorch's `DistributedDataParallel` has them: 25 MiB. Larger buckets take more memory, smaller ones more
/// operations.
pub const BUCKET_BYTES: u64 = 25 << 20;

/// Bytes of an element: replicas exchange f32.
const ELEMENT: u64 = size_of::<f32>() as u64;

/// Groups tensors, whose sizes are `elements`, in their order into buckets of at most `bucket_bytes` of f32. A larger tensor is a bucket
/// alone. Tensors without elements are in no bucket. Each bucket lists positions in `elements`.
pub(super) fn buckets(elements: &[usize], bucket_bytes: u64) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Vec<usize>> = vec![];
    let mut filled = 0;
    for (position, elements) in elements.iter().enumerate().filter(|(_, elements)| **elements > 0) {
        let bytes = *elements as u64 * ELEMENT;
        match buckets.last_mut() {
            Some(bucket) if filled + bytes <= bucket_bytes => bucket.push(position),
            _ => {
                buckets.push(vec![position]);
                filled = 0;
            }
        }
        filled += bytes;
    }
    buckets
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

    #[test]
    fn a_large_tensor_is_a_bucket_alone() {
        assert_eq!(buckets(&[1, 1, 9, 1, 0, 2, 1], 12), [vec![0, 1], vec![2], vec![3, 5], vec![6]]);
        assert_eq!(buckets(&[3, 4], 0), [vec![0], vec![1]]);
        assert!(buckets(&[], 12).is_empty());
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

        #[test]
        fn buckets_keep_the_order_and_the_limit(elements in prop::collection::vec(0_usize..50, 0..40), bytes in 0_u64..300) {
            let buckets = buckets(&elements, bytes);
            let flat: Vec<usize> = buckets.iter().flatten().copied().collect();
            let expected: Vec<usize> = (0..elements.len()).filter(|i| elements[*i] > 0).collect();
            prop_assert_eq!(flat, expected);
            let size = |bucket: &[usize]| bucket.iter().map(|i| elements[*i] as u64 * 4).sum::<u64>();
            for bucket in &buckets {
                prop_assert!(bucket.len() == 1 || size(bucket) <= bytes);
            }
            // No two neighbours would fit together.
            for pair in buckets.windows(2) {
                prop_assert!(size(&pair[0]) + size(&pair[1][..1]) > bytes);
            }
        }
    }
}
