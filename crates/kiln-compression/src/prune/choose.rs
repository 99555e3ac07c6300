//! Which weights are kept: functions on numbers.

/// The weights of a layer, for a choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights<'a> {
    /// The stored values.
    pub(super) values: &'a [f32],
    /// What is kept until now. A weight that is pruned is never kept again.
    pub(super) kept: &'a [bool],
}

/// How many of `total` weights a sparsity prunes: rounded half to even, as torch's `round(amount * tensor_size)`.
pub(super) fn pruned_count(sparsity: f64, total: usize) -> usize {
    (sparsity * total as f64).round_ties_even() as usize
}

/// Prunes the weights of smallest magnitude over all layers together (Han et al. 2015) until `count` are pruned, as
/// `torch.nn.utils.prune.global_unstructured` with `L1Unstructured`; with one layer as `l1_unstructured`. NaN counts as the largest.
///
/// Of weights of equal magnitude the one that comes first is pruned first. torch leaves the choice to its partial sort.
pub(super) fn magnitude(layers: &[Weights<'_>], count: usize) -> Vec<Vec<bool>> {
    let scores = layers.iter().flat_map(|layer| layer.values.iter().map(|value| value.abs()));
    lowest(layers, scores, count)
}

/// Prunes weights at random, each with the same probability, until `count` are pruned. A function of the seed.
pub(super) fn random(layers: &[Weights<'_>], count: usize, seed: u64) -> Vec<Vec<bool>> {
    // 24 bits are exact in f32.
    let score = |index| (split_mix(seed.wrapping_add(split_mix(index))) >> 40) as f32;
    let total: usize = layers.iter().map(|layer| layer.kept.len()).sum();
    lowest(layers, (0..total as u64).map(score), count)
}

/// SplitMix64 (Steele, Lea and Flood 2014): bits that look random, a function of the number.
fn split_mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Prunes the weights of the lowest scores until `count` are pruned.
fn lowest(layers: &[Weights<'_>], scores: impl Iterator<Item = f32>, count: usize) -> Vec<Vec<bool>> {
    let kept = layers.iter().flat_map(|layer| layer.kept.iter().copied());
    // What is pruned already comes first.
    let mut order: Vec<(f32, usize)> =
        scores.zip(kept).map(|(score, kept)| if kept { score } else { -1.0 }).zip(0..).collect();
    let pruned = order.iter().filter(|(score, _)| *score == -1.0).count();
    let count = count.max(pruned).min(order.len());
    if count < order.len() {
        order.select_nth_unstable_by(count, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }
    let mut all = vec![true; order.len()];
    for (_, index) in &order[..count] {
        all[*index] = false;
    }
    let mut rest = all.as_slice();
    let mut take = |layer: &Weights<'_>| {
        let (own, after) = rest.split_at(layer.kept.len());
        rest = after;
        own.to_vec()
    };
    layers.iter().map(&mut take).collect()
}

/// Keeps the `n` weights of largest magnitude of each `m` that follow each other along `axis` (Mishra et al. 2021: 2 of 4 along the input).
/// What is left over at the end of the axis, fewer than `m`, stays as it is. Ties as in [`magnitude`].
pub(super) fn n_of_m(layer: Weights<'_>, shape: &[usize], axis: usize, [n, m]: [usize; 2]) -> Vec<bool> {
    let mut kept = layer.kept.to_vec();
    let length = shape[axis];
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let mut order = Vec::with_capacity(m);
    for start in (0..outer).flat_map(|o| (0..inner).map(move |i| o * length * inner + i)) {
        for group in 0..length / m {
            order.clear();
            order.extend((group * m..(group + 1) * m).map(|k| {
                let at = start + k * inner;
                (if layer.kept[at] { layer.values[at].abs() } else { -1.0 }, at)
            }));
            order.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (_, at) in &order[..m - n] {
                kept[*at] = false;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(values: &[f32]) -> Vec<bool> {
        vec![true; values.len()]
    }

    #[test]
    fn counts_are_rounded_half_to_even() {
        assert_eq!([0.5, 1.5, 2.5].map(|x| pruned_count(x / 10.0, 10)), [0, 2, 2]);
    }

    #[test]
    fn the_smallest_of_all_layers_go() {
        let [a, b] = [[1.0, -0.1, 3.0], [0.2, f32::NAN, -5.0]];
        let (ka, kb) = (all(&a), all(&b));
        let layers = [Weights { values: &a, kept: &ka }, Weights { values: &b, kept: &kb }];
        assert_eq!(magnitude(&layers, 3), [[false, false, true], [false, true, true]]);
        assert_eq!(magnitude(&layers, 5), [[false, false, false], [false, true, false]]);
    }

    #[test]
    fn of_equals_the_first_goes() {
        let values = [1.0, -1.0, 1.0, 2.0];
        assert_eq!(magnitude(&[Weights { values: &values, kept: &all(&values) }], 2), [[false, false, true, true]]);
    }

    #[test]
    fn two_of_four_along_the_input_of_a_convolution() {
        // [1, 6, 1, 2]: four of six channels, at two places of the kernel.
        let values = [9.0, 1.0, 1.0, 9.0, 8.0, 2.0, 2.0, 8.0, 0.0, 0.0, 0.0, 0.0];
        let kept = n_of_m(Weights { values: &values, kept: &all(&values) }, &[1, 6, 1, 2], 1, [2, 4]);
        let expected = [true, false, false, true, true, false, false, true, true, true, true, true];
        assert_eq!(kept, expected);
    }

    proptest! {
        #[test]
        fn masks_never_grow_back(
            values in prop::collection::vec(-1.0f32..1.0, 1..60), first in 0.0..1.0f64, second in 0.0..1.0f64, seed: u64,
        ) {
            let total = values.len();
            let start = all(&values);
            for at_random in [false, true] {
                let choose = |kept: &[bool], sparsity| {
                    let layer = [Weights { values: &values, kept }];
                    let count = pruned_count(sparsity, total);
                    if at_random { random(&layer, count, seed) } else { magnitude(&layer, count) }.remove(0)
                };
                let once = choose(&start, first);
                let twice = choose(&once, second);
                prop_assert!(once.iter().zip(&twice).all(|(once, twice)| *once || !twice));
                let pruned = twice.iter().filter(|kept| !**kept).count();
                prop_assert_eq!(pruned, pruned_count(first.max(second), total));
            }
        }

        #[test]
        fn what_is_kept_is_not_smaller_than_what_is_pruned(values in prop::collection::vec(-1.0f32..1.0, 1..60), sparsity in 0.0..1.0f64) {
            let kept = magnitude(&[Weights { values: &values, kept: &all(&values) }], pruned_count(sparsity, values.len()));
            let of = |which: bool| values.iter().zip(&kept[0]).filter(move |(_, kept)| **kept == which).map(|(v, _)| v.abs());
            prop_assert!(of(false).fold(0.0, f32::max) <= of(true).fold(f32::INFINITY, f32::min));
        }
    }
}
