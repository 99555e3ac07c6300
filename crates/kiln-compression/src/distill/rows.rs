//! How many rows of logits exist at once.

/// Tensors of `[rows, classes]` in f32 that are alive at most: the logits of both models, their logarithms of the softmax, and
/// the temporaries of the backward pass.
const TENSORS: u64 = 8;

/// The number of rows whose temporaries fit in `bytes`, at least 1: each row has 8 tensors of `classes` numbers in f32.
///
/// ```
/// // 128 MiB and a vocabulary of 50257.
/// assert_eq!(kiln_compression::rows_at_once(128 << 20, 50257), 83);
/// ```
pub fn rows_at_once(bytes: u64, classes: usize) -> usize {
    let row = TENSORS * 4 * classes.max(1) as u64;
    usize::try_from(bytes / row).unwrap_or(usize::MAX).max(1)
}

/// First row and number of rows of each chunk of `rows` rows, at most `at_once` each.
pub(super) fn chunks(rows: usize, at_once: usize) -> impl Iterator<Item = (usize, usize)> {
    let at_once = at_once.max(1);
    (0..rows).step_by(at_once).map(move |first| (first, at_once.min(rows - first)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_fit_and_one_more_would_not(bytes in 0u64..1 << 40, classes in 1usize..1 << 20) {
            let rows = rows_at_once(bytes, classes) as u64;
            let row = 32 * classes as u64;
            prop_assert!(rows == 1 || rows * row <= bytes);
            prop_assert!((rows + 1) * row > bytes);
        }

        #[test]
        fn chunks_cover_every_row_once(rows in 0usize..500, at_once in 0usize..600) {
            let mut next = 0;
            for (first, count) in chunks(rows, at_once) {
                prop_assert_eq!(first, next);
                prop_assert!((1..=at_once.max(1)).contains(&count));
                next += count;
            }
            prop_assert_eq!(next, rows);
        }
    }
}
