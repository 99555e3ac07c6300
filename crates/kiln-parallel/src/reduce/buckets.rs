//! Tensors that are grouped into buckets, so that one operation serves many small tensors.

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
    fn a_large_tensor_is_a_bucket_alone() {
        assert_eq!(buckets(&[1, 1, 9, 1, 0, 2, 1], 12), [vec![0, 1], vec![2], vec![3, 5], vec![6]]);
        assert_eq!(buckets(&[3, 4], 0), [vec![0], vec![1]]);
        assert!(buckets(&[], 12).is_empty());
    }

    proptest! {
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
